package bootstrap

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Bounds of the numbers of this protocol.
const (
	maxRoom = 1<<63 - 1
	maxI31  = 1<<31 - 1
	maxSize = 65536 // of one dimension of a topology (http.md 2)
	maxPort = 65535
)

// object is a JSON object with its values unread. Keys are compared exactly
// and of a key given twice the last value is kept (http.md 2), which is what
// a map does and a struct, matched without regard to case, does not.
type object map[string]json.RawMessage

var errNoObject = errors.New("not one JSON object")

// parseObject reads one JSON object with nothing but blanks around it. A byte
// order mark, text that is not UTF-8 and nesting beyond 10000 are refused.
func parseObject(body []byte) (object, error) {
	if !utf8.Valid(body) {
		return nil, errNoObject
	}
	var o object
	if err := json.Unmarshal(body, &o); err != nil || o == nil { // nil: the word null
		return nil, errNoObject
	}
	return o, nil
}

// optional returns the value of key, or nil if it is left out or null.
func (o object) optional(key string) json.RawMessage {
	if v := o[key]; string(v) != "null" {
		return v
	}
	return nil
}

// fields reads the values of one object and keeps the first complaint, so
// that a reader is a list of lines. Its complaints name keys, never values:
// they are one line whatever was sent.
type fields struct {
	o   object
	err error
}

func (f *fields) fail(key, why string) {
	if f.err == nil {
		f.err = fmt.Errorf("%s %s", key, why)
	}
}

func (f *fields) required(key string) json.RawMessage {
	v, ok := f.o[key]
	if !ok {
		f.fail(key, "is missing")
	}
	return v
}

// integer reads a required integer in low … high.
func (f *fields) integer(key string, low, high int64) int64 {
	return f.integerOf(key, f.required(key), low, high)
}

func (f *fields) integerOf(key string, raw json.RawMessage, low, high int64) int64 {
	if f.err != nil {
		return 0
	}
	v, ok := jsonInteger(raw)
	switch {
	case !isJSONInteger(raw):
		f.fail(key, "is not an integer")
	case !ok || v < low || v > high:
		f.fail(key, fmt.Sprintf("is not in %d … %d", low, high))
	}
	return v
}

// port reads a required port, 1 … 65535.
func (f *fields) port(key string) uint16 { return f.portOf(key, f.required(key)) }

func (f *fields) portOf(key string, raw json.RawMessage) uint16 {
	v := f.integerOf(key, raw, 1, maxPort)
	if f.err != nil {
		return 0
	}
	return uint16(v) //nolint:gosec // just checked
}

// unsigned reads a required integer in low … 2^64-1.
func (f *fields) unsigned(key string, low uint64) uint64 {
	raw := f.required(key)
	if f.err != nil {
		return 0
	}
	v, err := strconv.ParseUint(string(raw), 10, 64)
	if !isJSONInteger(raw) || err != nil || v < low {
		f.fail(key, fmt.Sprintf("is not an integer of %d or more", low))
	}
	return v
}

// text reads a required string.
func (f *fields) text(key string) string { return f.textOf(key, f.required(key)) }

func (f *fields) textOf(key string, raw json.RawMessage) string {
	if f.err != nil {
		return ""
	}
	s, ok := jsonString(raw)
	if !ok {
		f.fail(key, "is not a string")
	}
	return s
}

// boolean reads a required bool.
func (f *fields) boolean(key string) bool { return f.booleanOf(key, f.required(key)) }

func (f *fields) booleanOf(key string, raw json.RawMessage) bool {
	if f.err != nil {
		return false
	}
	v := string(raw) == "true"
	if !v && string(raw) != "false" {
		f.fail(key, "is not a bool")
	}
	return v
}

// address reads a required string that holds an IP address.
func (f *fields) address(key string) string {
	s := f.text(key)
	if _, ok := parseIP(s); f.err == nil && !ok {
		f.fail(key, "is not an IP address")
	}
	return s
}

// isJSONInteger reports a JSON number without fraction and exponent. raw is
// valid JSON, so its first byte and the absence of ".eE" say it all.
func isJSONInteger(raw []byte) bool {
	return len(raw) > 0 && (raw[0] == '-' || raw[0] >= '0' && raw[0] <= '9') && !bytes.ContainsAny(raw, ".eE")
}

// jsonInteger reads a JSON integer; ok is false if it is none or does not fit.
func jsonInteger(raw []byte) (v int64, ok bool) {
	if !isJSONInteger(raw) {
		return 0, false
	}
	v, err := strconv.ParseInt(string(raw), 10, 64)
	return v, err == nil
}

func jsonString(raw []byte) (s string, ok bool) {
	if len(raw) == 0 || raw[0] != '"' {
		return "", false
	}
	return s, json.Unmarshal(raw, &s) == nil
}

// integers calls yield for each element of a JSON array of integers in
// 0 … high and reports whether it is one. It allocates nothing: in a valid
// array of integers a comma is always a separator, and anything else than an
// integer between two commas is bad.
func integers(raw []byte, high int64, yield func(int64)) bool {
	if len(raw) == 0 || raw[0] != '[' {
		return false
	}
	inner := trimBlanks(raw[1 : len(raw)-1])
	if len(inner) == 0 {
		return true
	}
	for part := range bytes.SplitSeq(inner, []byte(",")) {
		part = trimBlanks(part)
		// Digits and sign alone: a part cut out of a nested value may begin
		// like a number and end like something else.
		for i, c := range part {
			if (c < '0' || c > '9') && (c != '-' || i != 0) {
				return false
			}
		}
		v, ok := jsonInteger(part)
		if !ok || v < 0 || v > high {
			return false
		}
		yield(v)
	}
	return true
}

func trimBlanks(b []byte) []byte { return bytes.Trim(b, " \t\r\n") }

// parseDec reads the strict decimal form `0` or `-?[1-9][0-9]*` of the wire:
// no plus, blanks, leading zeros, -0, or other digits.
func parseDec(s string) (int64, bool) {
	digits := strings.TrimPrefix(s, "-")
	if digits == "" || digits[0] == '0' && s != "0" {
		return 0, false
	}
	for i := range len(digits) {
		if digits[i] < '0' || digits[i] > '9' {
			return 0, false
		}
	}
	v, err := strconv.ParseInt(s, 10, 64)
	return v, err == nil
}

// parseIP reads IPv4 with four parts or IPv6 text without brackets, zone or
// prefix length.
func parseIP(s string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(s)
	return a, err == nil && a.Zone() == ""
}

// validNode reports a node name: 1-128 bytes of 0x21-0x7e without a slash
// (wire.md 9.2).
func validNode(s string) bool {
	for i := range len(s) {
		if s[i] < 0x21 || s[i] > 0x7e || s[i] == '/' {
			return false
		}
	}
	return len(s) >= 1 && len(s) <= 128
}

// parseBoot reads 16 lower-case hex digits, not all zero (wire.md 9.2).
func parseBoot(s string) (uint64, bool) {
	if len(s) != 16 || strings.Trim(s, "0123456789abcdef") != "" {
		return 0, false
	}
	v, err := strconv.ParseUint(s, 16, 64)
	return v, err == nil && v != 0
}

func parseLogID(s string) ([]byte, bool) {
	b, err := hex.DecodeString(s)
	return b, err == nil && len(b) == 16 && strings.ToLower(s) == s
}

func formatBoot(boot uint64) string { return fmt.Sprintf("%016x", boot) }
