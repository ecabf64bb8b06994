package mirrortest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"
)

// authority signs certificates for 127.0.0.1.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	next int64
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func write(t testing.TB, path string, data []byte) string {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// newAuthority writes the authority's certificate to path.
func newAuthority(t testing.TB, path string) *authority {
	t.Helper()
	a := &authority{key: must[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)), next: 2}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der := must[[]byte](t)(x509.CreateCertificate(rand.Reader, c, c, &a.key.PublicKey, a.key))
	a.cert = must[*x509.Certificate](t)(x509.ParseCertificate(der))
	write(t, path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return a
}

// issue writes NAME.pem and NAME.key into dir.
func (a *authority) issue(t testing.TB, dir, name string) (cert, key string) {
	t.Helper()
	k := must[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	a.next++
	c := &x509.Certificate{
		SerialNumber: big.NewInt(a.next), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der := must[[]byte](t)(x509.CreateCertificate(rand.Reader, c, a.cert, &k.PublicKey, a.key))
	raw := must[[]byte](t)(x509.MarshalPKCS8PrivateKey(k))
	cert = write(t, filepath.Join(dir, name+".pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	key = write(t, filepath.Join(dir, name+".key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}))
	return cert, key
}

// newUser writes an nkey seed to path and returns the public key.
func newUser(t testing.TB, path string) string {
	t.Helper()
	k := must[nkeys.KeyPair](t)(nkeys.CreateUser())
	write(t, path, must[[]byte](t)(k.Seed()))
	return must[string](t)(k.PublicKey())
}

// newOperator gives the part of a server configuration that trusts one operator
// with one JetStream account, and writes the credentials of one of its users.
func newOperator(t testing.TB, creds string) string {
	t.Helper()
	pub := func(k nkeys.KeyPair) string { return must[string](t)(k.PublicKey()) }
	oper := must[nkeys.KeyPair](t)(nkeys.CreateOperator())
	system := must[nkeys.KeyPair](t)(nkeys.CreateAccount())
	account := must[nkeys.KeyPair](t)(nkeys.CreateAccount())
	user := must[nkeys.KeyPair](t)(nkeys.CreateUser())

	oc := jwt.NewOperatorClaims(pub(oper))
	oc.SystemAccount = pub(system)
	sc := jwt.NewAccountClaims(pub(system))
	ac := jwt.NewAccountClaims(pub(account))
	ac.Limits.JetStreamLimits = jwt.JetStreamLimits{DiskStorage: -1, MemoryStorage: -1, Streams: -1, Consumer: -1}
	uc := jwt.NewUserClaims(pub(user))
	uc.IssuerAccount = pub(account)

	encode := func(c interface {
		Encode(nkeys.KeyPair) (string, error)
	}, k nkeys.KeyPair,
	) string {
		return must[string](t)(c.Encode(k))
	}
	file := must[[]byte](t)(jwt.FormatUserConfig(encode(uc, account), must[[]byte](t)(user.Seed())))
	write(t, creds, file)
	var sb strings.Builder
	fmt.Fprintf(&sb, "operator: %q\nresolver: MEMORY\nresolver_preload: {\n", encode(oc, oper))
	fmt.Fprintf(&sb, "  %s: %q\n  %s: %q\n}\n", pub(system), encode(sc, oper), pub(account), encode(ac, oper))
	return sb.String()
}
