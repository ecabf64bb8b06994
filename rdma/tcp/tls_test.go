package tcp_test

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/pdlog/pdlog/rdma"
	"github.com/pdlog/pdlog/rdma/rdmatest"
	"github.com/pdlog/pdlog/rdma/tcp"
)

// identity makes a key and its certificate out of a seed, so that the suite's
// child processes have the same.
func identity(t testing.TB, seed byte) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key := ed25519.NewKeyFromSeed(append(make([]byte, ed25519.SeedSize-1), seed))
	template := &x509.Certificate{
		SerialNumber: big.NewInt(int64(seed)), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC), NotAfter: time.Date(2120, 1, 1, 0, 0, 0, 0, time.UTC),
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IsCA:        true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(nil, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

func mutual(cert tls.Certificate, trust *x509.CertPool) *tls.Config {
	return &tls.Config{
		Certificates: []tls.Certificate{cert}, RootCAs: trust, ClientCAs: trust,
		ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13,
	}
}

// encrypted is tcp with a TLS configuration for every domain.
type encrypted struct {
	tcp.Provider
	cfg *tls.Config
}

func (e encrypted) Open(ctx context.Context, cfg rdma.Config) (rdma.Domain, error) {
	cfg.TLS = e.cfg
	return e.Provider.Open(ctx, cfg)
}

// Rounds of revocation: the bracket is the same as without TLS.
func (encrypted) Rounds() int { return 20 }

func TestConformanceWithTLS(t *testing.T) {
	cert, trust := identity(t, 1)
	rdmatest.Run(t, func(*testing.T) rdma.Provider { return encrypted{cfg: mutual(cert, trust)} })
}

// TestTLSRefusesWhoeverHasNoCertificate: neither plain text nor a stranger's
// certificate becomes a peer, on either side.
func TestTLSRefusesWhoeverHasNoCertificate(t *testing.T) {
	cert, trust := identity(t, 1)
	stranger, strangers := identity(t, 2)
	_, both := identity(t, 1)
	c2, err := x509.ParseCertificate(stranger.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	both.AddCert(c2)
	heard := make(chan rdma.Notif, 10)
	target, err := tcp.Provider{}.Open(t.Context(), rdma.Config{
		Self: "d", Listen: "127.0.0.1:0", TLS: mutual(cert, trust), OnNotif: func(n rdma.Notif) { heard <- n },
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, cfg := range map[string]*tls.Config{
		"plain text":                   nil,
		"stranger's certificate":       mutual(stranger, both),
		"target that is not trusted":   mutual(cert, strangers),
		"target by another name":       {Certificates: []tls.Certificate{cert}, RootCAs: trust, ServerName: "elsewhere"},
		"no certificate from a writer": {RootCAs: trust},
	} {
		w, err := tcp.Provider{}.Open(t.Context(), rdma.Config{Self: "p", TLS: cfg})
		if err != nil {
			t.Fatal(err)
		}
		if ep, err := w.Connect(t.Context(), target.Info()); err == nil {
			t.Errorf("%s: connected as %v", name, ep.Peer())
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := target.Close(); err != nil {
		t.Error(err)
	}
	select {
	case n := <-heard:
		t.Errorf("told %+v", n)
	default:
	}
	if d, err := (tcp.Provider{}).Open(t.Context(), rdma.Config{Listen: "127.0.0.1:0", TLS: &tls.Config{RootCAs: trust}}); err == nil {
		t.Error("a listener without a certificate")
		_ = d.Close()
	}
}
