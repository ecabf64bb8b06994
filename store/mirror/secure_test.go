package mirror_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pdlog/pdlog/store/mirror"
	"github.com/pdlog/pdlog/store/mirror/mirrortest"
)

// What docs/operate.md says a node and a reader need, for node d0 of cluster c1.
var (
	nodeMayPublish = []string{
		"pdlog.log.c1.d0", "pdlog.audit.c1.d0.>",
		"$JS.API.STREAM.INFO.PDLOG", "$JS.API.STREAM.INFO.PDLOG_AUDIT", "$JS.API.STREAM.CREATE.PDLOG", "$JS.API.STREAM.CREATE.PDLOG_AUDIT",
		"$JS.API.STREAM.MSG.GET.PDLOG", "$JS.API.STREAM.MSG.GET.PDLOG_AUDIT",
		"$JS.API.CONSUMER.CREATE.PDLOG.>", "$JS.API.CONSUMER.CREATE.PDLOG_AUDIT.>",
		"$JS.API.CONSUMER.MSG.NEXT.PDLOG.>", "$JS.API.CONSUMER.MSG.NEXT.PDLOG_AUDIT.>",
		"$JS.API.CONSUMER.DELETE.PDLOG.>", "$JS.API.CONSUMER.DELETE.PDLOG_AUDIT.>",
	}
	nodeMaySubscribe = []string{"_INBOX.>"}
)

// The same mirror over TLS with every kind of user, against one server and
// clusters, in this process and as processes.
func TestMirrorOverTLSWithUsers(t *testing.T) {
	for name, o := range map[string]mirrortest.Options{
		"password":                     {Auth: mirrortest.Password, Publish: nodeMayPublish, Subscribe: nodeMaySubscribe},
		"tls and nkey":                 {TLS: true, Auth: mirrortest.NKeys, Publish: nodeMayPublish, Subscribe: nodeMaySubscribe},
		"cluster, tls and credentials": {Count: 3, TLS: true, Auth: mirrortest.Credentials},
		"cluster of processes, tls and credentials": {
			Count: 3, Processes: true, TLS: true, Auth: mirrortest.Credentials,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := mirrortest.Start(t, o)
			w := mirrortest.OpenNode(t, t.TempDir(), "d0", 1)
			r := mirrortest.Run(t, w, mirror.Options{URL: s.URL(), Access: s.Access, Replicas: max(o.Count, 1)})
			w.MustAppend(t, 300)
			r.Wait(t, w.Seq)
			if o.Count > 1 { // and goes on when its server goes
				s.Kill(0)
				w.MustAppend(t, 300)
				r.Wait(t, w.Seq)
				s.Run(0)
			}
			w.MustAppend(t, 300)
			r.Wait(t, w.Seq)
			r.Stop(t)
			nc := s.Connect()
			if c := mirrortest.Compare(t, nc, w); !c.Exact() || c.Events != w.Seq {
				t.Errorf("the mirror is not the log: %+v", c)
			}
			if in, ok, err := mirror.LastOf(t.Context(), nc, mirrortest.Cluster, "d0"); err != nil || !ok || in.LastSeq != w.Seq {
				t.Errorf("last of d0: %+v, %v, %v", in, ok, err)
			}
			js := s.JetStream(nc)
			for _, stream := range []string{mirror.StreamLog, mirror.StreamAudit} {
				st, err := js.Stream(t.Context(), stream)
				if err != nil {
					t.Fatal(err)
				}
				if c := st.CachedInfo().Config; c.Replicas != max(o.Count, 1) || c.Discard != jetstream.DiscardNew || c.Storage != jetstream.FileStorage {
					t.Errorf("stream %s: %d replicas, discard %v, storage %v", stream, c.Replicas, c.Discard, c.Storage)
				}
			}
			if o.TLS { // who has no certificate, or does not know the authority, stays outside
				for _, a := range []mirror.Access{{}, {CA: s.Access.CA, NKey: s.Access.NKey, Credentials: s.Access.Credentials}} {
					if nc, err := mirror.Dial(s.URL(), a, nats.Timeout(5*time.Second)); err == nil {
						nc.Close()
						t.Errorf("connected with %+v", a)
					}
				}
			}
		})
	}
}

// A node that may not publish as another one cannot.
func TestAUserMirrorsItsOwnNodeAlone(t *testing.T) {
	s := mirrortest.Start(t, mirrortest.Options{Auth: mirrortest.NKeys, Publish: nodeMayPublish, Subscribe: nodeMaySubscribe})
	w := mirrortest.OpenNode(t, t.TempDir(), "d1", 1)
	w.MustAppend(t, 10)
	r := mirrortest.Run(t, w, mirror.Options{URL: s.URL(), Access: s.Access, PublishTimeout: 500 * time.Millisecond})
	look, timeout := time.NewTicker(5*time.Millisecond), time.After(time.Minute)
	defer look.Stop()
	for r.Err() == nil || !strings.Contains(strings.ToLower(r.Err().Error()), "permissions violation") {
		select {
		case <-look.C:
		case <-timeout:
			t.Fatalf("trouble: %v", r.Err())
		}
	}
	if r.LastMirrored() != 0 {
		t.Errorf("mirrored %d events as somebody else", r.LastMirrored())
	}
}

func TestAccessThatCannotBeUsedIsNamed(t *testing.T) {
	dir := t.TempDir()
	junk := filepath.Join(dir, "junk")
	if err := os.WriteFile(junk, []byte("nothing of use"), 0o600); err != nil {
		t.Fatal(err)
	}
	gone := filepath.Join(dir, "gone")
	for name, c := range map[string]struct {
		a    mirror.Access
		want string
	}{
		"no credentials":     {mirror.Access{Credentials: gone}, gone},
		"both":               {mirror.Access{Credentials: junk, NKey: junk}, "one of them"},
		"no nkey":            {mirror.Access{NKey: gone}, gone},
		"nkey of junk":       {mirror.Access{NKey: junk}, junk},
		"no authority":       {mirror.Access{CA: gone}, gone},
		"authority of junk":  {mirror.Access{CA: junk}, junk},
		"certificate alone":  {mirror.Access{Cert: junk}, "both or none"},
		"certificate is bad": {mirror.Access{Cert: junk, Key: junk}, "certificate"},
	} {
		if err := c.a.Check(); !errors.Is(err, mirror.ErrAccess) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: have %v, want %q", name, err, c.want)
		}
	}
	if err := (mirror.Access{}).Check(); err != nil {
		t.Errorf("an open server: %v", err)
	}
	env := map[string]string{"NATS_CREDS": "a", "NATS_NKEY": "b", "NATS_CA": "c", "NATS_CERT": "d", "NATS_KEY": "e"}
	if a := mirror.AccessFromEnv(func(k string) string { return env[k] }); a != (mirror.Access{Credentials: "a", NKey: "b", CA: "c", Cert: "d", Key: "e"}) {
		t.Errorf("from the environment: %+v", a)
	}
}

func TestSecretsInURLsAreNotShown(t *testing.T) {
	for in, want := range map[string]string{
		"nats://h:4222":       "nats://h:4222",
		"nats://u:p@h:4222/c": "nats://u:xxxxx@h:4222/c",
		"nats://token@h":      "nats://xxxxx@h",
		"nats://u:p%40ss@h:1,nats://u:pass@word@h2:1": "nats://u:xxxxx@h:1,nats://u:xxxxx@h2:1",
		"u:p@h": "u:xxxxx@h",
	} {
		if have := mirror.Redact(in); have != want {
			t.Errorf("%s: have %s, want %s", in, have, want)
		}
	}
}
