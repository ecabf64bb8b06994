package backends

import (
	"math"
	"strings"
	"testing"
)

func TestDecTakesOnlyTheCanonicalForm(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "1": 1, "-1": -1, "4242": 4242, "-2147483648": math.MinInt32, "9223372036854775807": math.MaxInt64,
	} {
		mag, neg, ok := parseDec([]byte(text))
		got := int64(mag)
		if neg {
			got = -got
		}
		if !ok || got != want {
			t.Errorf("%q: %d, %v; want %d", text, got, ok, want)
		}
	}
	if mag, _, ok := parseDec([]byte("18446744073709551615")); !ok || mag != math.MaxUint64 {
		t.Errorf("2^64-1: %d, %v", mag, ok)
	}
	for _, text := range []string{
		"", "-", "-0", "--1", "+1", " 1", "1 ", "1\n", "\t1", "00", "01", "-01", "1_0", "0x1", "1e3", "1.0", "1\x00", "\x001",
		"\u0664", "\uff14", "18446744073709551616", "18446744073709551620", "99999999999999999999", "100000000000000000000",
		"184467440737095516150", strings.Repeat("1", 1000), "/", ":", "1/", "1:",
	} {
		if v, _, ok := parseDec([]byte(text)); ok {
			t.Errorf("%q was read as %d", text, v)
		}
	}
}

func TestAddresses(t *testing.T) {
	for text, want := range map[string]bool{
		"10.0.0.1": true, "0.0.0.0": true, "255.255.255.255": true, "::": true, "::1": true, "fe80::1": true,
		"2001:DB8::7": true, "::ffff:10.0.0.1": true, "1:2:3:4:5:6:7:8": true,
		"ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255": true,
		"": false, "10.0.0": false, "10.0.0.1.1": false, "10.0.0.256": false, "010.0.0.1": false, "10.0.0.01": false,
		"10.0.0.1 ": false, " 10.0.0.1": false, "10.0.0.1\x00": false, "10.0.0.1:5000": false, "10.0.0.1/32": false,
		"[::1]": false, "fe80::1%eth0": false, "fe80::1%": false, "::1/128": false, "1::2::3": false,
		"12345::": false, ":::": false, "::ffff:010.0.0.1": false, "localhost": false, "167772161": false, "0x0a.0.0.1": false,
		"1:2:3:4:5:6:7:8:9": false,
	} {
		if _, ok := readIP([]byte(text)); ok != want {
			t.Errorf("%q: %v, want %v", text, ok, want)
		}
	}
	for text, want := range map[string]bool{
		"1": true, "65535": true, "0": false, "65536": false, "-1": false, "05000": false, "": false, "5000 ": false,
	} {
		if _, ok := parsePort([]byte(text)); ok != want {
			t.Errorf("port %q: %v, want %v", text, ok, want)
		}
	}
}

func TestEndpointURLAndAddress(t *testing.T) {
	for _, c := range []struct {
		e   Endpoint
		url string
	}{
		{Endpoint{"10.0.0.1", 5000}, "tcp://10.0.0.1:5000"},
		{Endpoint{"fe80::1", 40123}, "tcp://[fe80::1]:40123"},
	} {
		if got := c.e.URL(); got != c.url {
			t.Errorf("URL %s, want %s", got, c.url)
		}
	}
	upper, lower := Endpoint{"2001:DB8::7", 1}.AddrPort(), Endpoint{"2001:db8::7", 1}.AddrPort()
	if upper != lower || !upper.IsValid() {
		t.Errorf("%v and %v are one address", upper, lower)
	}
	if (Endpoint{"host", 1}).AddrPort().IsValid() {
		t.Error("a host name has an address")
	}
}

func TestSessionNeedsHostAndPort(t *testing.T) {
	for text, want := range map[string]bool{
		"10.0.0.1:17800": true, "h:1": true, "a:b:65535": true, "[::1]:9": true, "::1:9": true, "::9": true,
		"": false, ":9": false, "h": false, "h:": false, "h:0": false, "h:65536": false, "h:017800": false, "h:9 ": false,
		"h h:9": false, "h\x7f:9": false, "\u00e9:9": false, "h:+9": false, "h:-9": false,
	} {
		if got := isSession(text); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

func TestLooksNumeric(t *testing.T) {
	for text, want := range map[string]bool{
		"4242": true, "+4242": true, " 4242": true, "4_242": true, "-1": true, "\t\n\v\f\r7": true, "1-2": true,
		"99999999999999999999999": true,
		"":                        false, "+": false, "- _": false, "hello": false, "0x1092": false, "4e3": false, "4242\x00": false,
		"\u0664": false, "4242\u00a0": false, "4,242": false, "4.2": false, "\x0e4": false, "\x1c4": false,
	} {
		if got := LooksNumeric([]byte(text)); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

func TestNamesArePrintableASCII(t *testing.T) {
	for text, want := range map[string]bool{
		"!": true, "~": true, "a_b": true, "": false, " ": false, "a b": false, "a\x7f": false, "a\x00": false, "\u00e9": false,
	} {
		if got := isName(text); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}
