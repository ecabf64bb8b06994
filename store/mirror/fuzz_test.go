package mirror

import (
	"reflect"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/pdlog/pdlog/store"
)

// FuzzURL: what is taken for servers is taken again, and no secret of it is shown.
func FuzzURL(f *testing.F) {
	f.Add("nats://127.0.0.1:4222/c1")
	f.Add("tls://user:secret@a:1,b:2,nats://c:3/default")
	f.Add("nats://token@host")
	f.Fuzz(func(t *testing.T, s string) {
		server, cluster, err := ParseURL(s)
		Redact(s)
		if err != nil {
			return
		}
		again, none, err := ParseURL(server)
		if err != nil || again != server || none != "" || strings.Contains(cluster, "/") {
			t.Fatalf("%q gives %q and %q, and that %q, %q, %v", s, server, cluster, again, none, err)
		}
	})
}

// FuzzLogHead: the headers of a message are a mirror's, or it has diverged.
func FuzzLogHead(f *testing.F) {
	h := logHead{node: "d0", logID: store.LogID{1}, first: 1, last: 9, chain: 7, boot: 3, incarnation: 1}.header()
	keys := []string{HeaderNode, HeaderLogID, HeaderBoot, HeaderIncarnation, HeaderFirstSeq, HeaderLastSeq, HeaderChainBefore, HeaderChain}
	seed := make([]string, len(keys))
	for i, k := range keys {
		seed[i] = h.Get(k)
	}
	f.Add(strings.Join(seed, "\n"))
	f.Fuzz(func(t *testing.T, text string) {
		h := nats.Header{}
		for i, v := range strings.SplitN(text, "\n", len(keys)) {
			h.Set(keys[i], v)
		}
		have, err := parseLogHead(h)
		if err != nil {
			return
		}
		again, err := parseLogHead(have.header())
		if err != nil || !reflect.DeepEqual(again, have) || have.first == 0 || have.last < have.first {
			t.Fatalf("%+v is read as %+v, %v", have, again, err)
		}
	})
}
