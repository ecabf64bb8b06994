package mirror

import (
	"net/url"
	"os"
	"strings"

	"github.com/cockroachdb/errors"
	"github.com/nats-io/nats.go"
)

// Access is how a client gets into a NATS server, beyond what its URL says
// (nats://user:password@host, nats://token@host, tls://host). The zero value is
// an open server. Files are read at every (re)connect, so that they may be
// replaced while the client runs.
type Access struct {
	Credentials string // file with a user's JWT and seed, as nsc writes it
	NKey        string // file with a user's nkey seed
	CA          string // PEM file of the authorities of the servers' certificates; empty = the system's
	Cert, Key   string // PEM files of this client's certificate; both or none
}

// ErrAccess: an Access that cannot be used; the text says which file and why.
var ErrAccess = errors.New("nats access")

// AccessFromEnv is the access that the nats tool would use: NATS_CREDS,
// NATS_NKEY, NATS_CA, NATS_CERT and NATS_KEY.
func AccessFromEnv(getenv func(string) string) Access {
	return Access{
		Credentials: getenv("NATS_CREDS"), NKey: getenv("NATS_NKEY"),
		CA: getenv("NATS_CA"), Cert: getenv("NATS_CERT"), Key: getenv("NATS_KEY"),
	}
}

func (a Access) options() ([]nats.Option, error) {
	var out []nats.Option
	switch {
	case a.Credentials != "" && a.NKey != "":
		return nil, errors.Wrapf(ErrAccess, "credentials %s and nkey %s: one of them, please", a.Credentials, a.NKey)
	case (a.Cert == "") != (a.Key == ""):
		return nil, errors.Wrapf(ErrAccess, "certificate %q and key %q: both or none", a.Cert, a.Key)
	}
	if a.Credentials != "" {
		if _, err := os.ReadFile(a.Credentials); err != nil { // nats.go would say so at every connect
			return nil, errors.Wrapf(ErrAccess, "credentials: %v", err)
		}
		out = append(out, nats.UserCredentials(a.Credentials))
	}
	if a.NKey != "" {
		o, err := nats.NkeyOptionFromSeed(a.NKey)
		if err != nil {
			return nil, errors.Wrapf(ErrAccess, "nkey %s: %v", a.NKey, err)
		}
		out = append(out, o)
	}
	if a.CA != "" {
		out = append(out, nats.RootCAs(a.CA))
	}
	if a.Cert != "" {
		out = append(out, nats.ClientCert(a.Cert, a.Key))
	}
	var probe nats.Options
	for _, o := range out {
		if err := o(&probe); err != nil {
			return nil, errors.Wrapf(ErrAccess, "%v", err)
		}
	}
	return out, nil
}

// Check says early what a connection would stumble over. The error is an
// ErrAccess.
func (a Access) Check() error {
	_, err := a.options()
	return err
}

// Dial connects to the servers of a URL that ParseURL gave (or one like it). The
// error is ErrAccess, or the network's or the server's.
func Dial(server string, a Access, more ...nats.Option) (*nats.Conn, error) {
	opts, err := a.options()
	if err != nil {
		return nil, err
	}
	nc, err := nats.Connect(server, append(opts, more...)...)
	return nc, errors.Wrapf(err, "connect to %s", Redact(server))
}

// ParseURL takes nats://HOST:PORT[,HOST:PORT…][/CLUSTER] apart: what to connect
// to, one or several servers of a NATS cluster with commas between them, and
// the pdlog cluster to look at, "" for all. The error is ErrURL.
func ParseURL(s string) (server, cluster string, err error) {
	var servers []string
	parts := strings.Split(s, ",")
	for i, part := range parts {
		if i > 0 && !strings.Contains(part, "://") {
			scheme, _, _ := strings.Cut(parts[0], "://")
			part = scheme + "://" + part
		}
		u, err := url.Parse(part)
		if err != nil {
			return "", "", errors.Wrapf(ErrURL, "%s: want nats://HOST:PORT[/CLUSTER]", Redact(s))
		}
		path := strings.Trim(u.Path, "/")
		last := i == len(parts)-1
		if (u.Scheme != "nats" && u.Scheme != "tls") || u.Hostname() == "" || strings.Contains(path, "/") || path != "" && !last {
			return "", "", errors.Wrapf(ErrURL, "%s: want nats://HOST:PORT[,HOST:PORT][/CLUSTER]", Redact(s))
		}
		cluster, u.Path = path, ""
		servers = append(servers, u.String())
	}
	return strings.Join(servers, ","), cluster, nil
}

// Redact replaces the secrets in a URL or a list of them, for people to read.
func Redact(s string) string {
	parts := strings.Split(s, ",")
	for i, part := range parts {
		head, rest, ok := strings.Cut(part, "://")
		if !ok {
			head, rest = "", part
		} else {
			head += "://"
		}
		if at := strings.LastIndexByte(rest, '@'); at >= 0 {
			user, _, hasPassword := strings.Cut(rest[:at], ":")
			if !hasPassword { // a token is a secret too
				user = "xxxxx"
			} else {
				user += ":xxxxx"
			}
			rest = user + rest[at:]
		}
		parts[i] = head + rest
	}
	return strings.Join(parts, ",")
}
