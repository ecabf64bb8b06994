package node

import (
	"net"
	"os"
	"os/user"
	"strconv"

	"github.com/cockroachdb/errors"
)

// validateServers checks what is served to engines and people.
func (c *Config) validateServers() error {
	if m, err := strconv.ParseUint(c.SocketMode, 8, 32); err != nil || m == 0 || m > 0o777 {
		return badKey("socket_mode", "want a mode in octal such as 0660, have %q", c.SocketMode)
	}
	if err := c.Engine.TLS.validate("engine.tls"); err != nil {
		return err
	}
	if err := c.HTTP.TLS.validate("http.tls"); err != nil {
		return err
	}
	if at := c.Engine.Listen; at != "" {
		if _, _, err := net.SplitHostPort(at); err != nil {
			return badKey("engine.listen", "want host:port, have %q", at)
		}
		if c.Engine.TLS.ClientCA == "" {
			return badKey("engine.tls.client_ca", "is not set: on TCP the engine API takes mutual TLS")
		}
	}
	if at := c.HTTP.Listen; at != "" {
		host, _, err := net.SplitHostPort(at)
		if err != nil {
			return badKey("http.listen", "want host:port, have %q", at)
		}
		if !loopback(host) && c.HTTP.TLS.Cert == "" {
			return badKey("http.tls.cert", "is not set: http.listen %s is not on the loopback", at)
		}
	}
	return nil
}

func (t *TLSConfig) validate(key string) error {
	switch {
	case (t.Cert == "") != (t.Key == ""):
		return badKey(key, "cert and key belong together")
	case t.Cert == "" && t.ClientCA != "":
		return badKey(key+".cert", "is not set, and client_ca is")
	}
	return nil
}

// loopback: nobody beyond this host reaches it.
func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// permit gives the engine's socket its mode and group.
func (c *Config) permit(path string) error {
	mode, err := strconv.ParseUint(c.SocketMode, 8, 32)
	if err != nil {
		return badKey("socket_mode", "want a mode in octal, have %q", c.SocketMode)
	}
	if c.SocketGroup != "" {
		g, err := user.LookupGroup(c.SocketGroup)
		if err != nil {
			return badKey("socket_group", "%v", err)
		}
		gid, err := strconv.Atoi(g.Gid)
		if err != nil {
			return badKey("socket_group", "group %s has no number", c.SocketGroup)
		}
		if err := os.Chown(path, -1, gid); err != nil {
			return errors.Wrap(err, "socket_group")
		}
	}
	return errors.Wrap(os.Chmod(path, os.FileMode(mode)), "socket_mode")
}
