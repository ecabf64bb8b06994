package replay_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/pdlog/pdlog/replay"
	"github.com/pdlog/pdlog/store/mirror"
	"github.com/pdlog/pdlog/store/mirror/mirrortest"
)

// mirrored is a closed log of about 400 events in five messages, and these.
func mirrored(t *testing.T, s *mirrortest.Servers, boot uint64) (dir string, msgs []*nats.Msg) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "d0", "log")
	w := mirrortest.OpenNode(t, dir, "d0", boot)
	w.MustStart(t)
	r := mirrortest.Run(t, w, mirror.Options{URL: s.URL()})
	r.Wait(t, w.Seq)
	for range 4 {
		w.MustAppend(t, 100)
		r.Wait(t, w.Seq)
	}
	r.Stop(t)
	if err := w.Log.Close(); err != nil {
		t.Fatal(err)
	}
	js := s.JetStream(s.Connect())
	st, err := js.Stream(t.Context(), mirror.StreamLog)
	if err != nil {
		t.Fatal(err)
	}
	for seq := st.CachedInfo().State.FirstSeq; seq <= st.CachedInfo().State.LastSeq; seq++ {
		m, err := st.GetMsg(t.Context(), seq)
		if err != nil {
			t.Fatal(err)
		}
		h := nats.Header{}
		for k, v := range m.Header {
			if strings.HasPrefix(k, "Pdlog-") { // not what the server looks at
				h[k] = v
			}
		}
		msgs = append(msgs, &nats.Msg{Subject: m.Subject, Header: h, Data: m.Data})
	}
	if err := st.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(msgs) != 5 {
		t.Fatalf("%d messages", len(msgs))
	}
	return dir, msgs
}

func changed(m *nats.Msg, change func(*nats.Msg)) *nats.Msg {
	c := &nats.Msg{Subject: m.Subject, Header: nats.Header{}, Data: bytes.Clone(m.Data)}
	for k, v := range m.Header {
		c.Header[k] = append([]string(nil), v...)
	}
	change(c)
	return c
}

// Every way in which a mirror can differ from its log: verify says what is wrong
// with it, diff where it begins.
func TestMirrorAgainstLog(t *testing.T) {
	s := mirrortest.Start(t, mirrortest.Options{Lazy: true})
	dir, m := mirrored(t, s, 1)
	_, foreign := mirrored(t, s, 2)
	nc := s.Connect()
	js := s.JetStream(nc)
	forged := changed(foreign[2], func(c *nats.Msg) { c.Header.Set(mirror.HeaderLogID, m[0].Header.Get(mirror.HeaderLogID)) })
	flipped := changed(m[2], func(c *nats.Msg) { c.Data[60] ^= 4 })
	for name, c := range map[string]struct {
		msgs    []*nats.Msg
		verify  string // in a violation; empty = it holds
		lag     uint64
		kind    string // of the first difference; empty = none
		seq     uint64
		inWords string
	}{
		"equal":           {msgs: m},
		"shorter":         {msgs: m[:4], lag: 100, kind: "missing_right", seq: 302, inWords: "only the first source has it"},
		"missing":         {msgs: []*nats.Msg{m[0], m[1], m[3], m[4]}, verify: "gap: c1/d0", kind: "missing_right", seq: 102, inWords: "only the first source has it"},
		"begins late":     {msgs: m[1:], verify: "gap: c1/d0", kind: "damaged_right", seq: 1, inWords: "the second source is damaged: gap"},
		"changed byte":    {msgs: []*nats.Msg{m[0], m[1], flipped, m[3], m[4]}, verify: "checksum", kind: "missing_right", seq: 102},
		"other contents":  {msgs: []*nats.Msg{m[0], m[1], forged, m[3], m[4]}, verify: "chain", kind: "differs", seq: 102, inWords: "boot"},
		"duplicated":      {msgs: []*nats.Msg{m[0], m[1], m[1], m[2], m[3], m[4]}, verify: "duplicate: c1/d0", kind: "damaged_right", seq: 102, inWords: "duplicate"},
		"reordered":       {msgs: []*nats.Msg{m[0], m[2], m[1], m[3], m[4]}, verify: "gap: c1/d0", kind: "missing_right", seq: 2},
		"another log":     {msgs: foreign, verify: "which the mirror does not hold", kind: "differs", seq: 1, inWords: "boot"},
		"an event reused": {msgs: []*nats.Msg{m[0], m[1], m[2], m[3], m[4], m[0]}, verify: "duplicate: c1/d0", kind: "damaged_right", seq: 402},
	} {
		t.Run(name, func(t *testing.T) {
			st, err := js.Stream(t.Context(), mirror.StreamLog)
			if err != nil {
				t.Fatal(err)
			}
			if err := st.Purge(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, msg := range c.msgs {
				if _, err := js.PublishMsg(t.Context(), msg); err != nil {
					t.Fatal(err)
				}
			}
			v := verify(t, dir, s.URL())
			if v.OK != (c.verify == "") {
				t.Errorf("verify: %+v", v.Violations)
			}
			if c.verify != "" && !violates(v, c.verify) {
				t.Errorf("verify does not say %q: %+v", c.verify, v.Violations)
			}
			if lag := v.Logs[1].Lag; c.lag != lag && c.verify == "" {
				t.Errorf("lag %d, want %d", lag, c.lag)
			}
			left, right := opened(t, dir), opened(t, s.URL())
			d, err := replay.Diff(t.Context(), left, right, "")
			if err != nil {
				t.Fatal(err)
			}
			var text strings.Builder
			if err := d.Write(&text); err != nil {
				t.Fatal(err)
			}
			if d.Equal != (c.kind == "") {
				t.Fatalf("diff: %s", text.String())
			}
			if c.kind != "" && (d.Differences[0].Kind != c.kind || d.Differences[0].Seq != c.seq || !strings.Contains(text.String(), c.inWords)) {
				t.Errorf("first difference %s at %d, want %s at %d with %q: %s", d.Differences[0].Kind, d.Differences[0].Seq, c.kind, c.seq, c.inWords, text.String())
			}
		})
	}
}

// A log that lost its end is behind its mirror: that is no lag, it is a loss.
func TestLogThatIsBehindItsMirror(t *testing.T) {
	s := mirrortest.Start(t, mirrortest.Options{Lazy: true})
	older := filepath.Join(t.TempDir(), "d0", "log")
	w := mirrortest.OpenNode(t, older, "d0", 1)
	w.MustStart(t)
	w.MustAppend(t, 100)
	dir := filepath.Join(t.TempDir(), "copy", "log")
	if err := w.Log.Close(); err != nil {
		t.Fatal(err)
	}
	copyTree(t, older, dir)
	w = mirrortest.OpenNode(t, older, "d0", 2)
	r := mirrortest.Run(t, w, mirror.Options{URL: s.URL()})
	w.MustAppend(t, 50)
	r.Wait(t, w.Seq)
	r.Stop(t)
	if v := verify(t, dir, s.URL()); v.OK || !violates(v, "events were lost from the log") {
		t.Errorf("verify: %+v", v.Violations)
	}
	d, err := replay.Diff(t.Context(), opened(t, dir), opened(t, s.URL()), "")
	if err != nil || d.Equal || d.Differences[0].Kind != "missing_left" || d.Differences[0].Seq != 102 {
		t.Errorf("diff: %+v, %v", d, err)
	}
}

// pdreplay gets into a secured cluster as the nats tool does.
func TestSourcesBehindTLSAndCredentials(t *testing.T) {
	s := mirrortest.Start(t, mirrortest.Options{TLS: true, Auth: mirrortest.Credentials})
	w := mirrortest.OpenNode(t, t.TempDir(), "d0", 1)
	w.MustStart(t)
	r := mirrortest.Run(t, w, mirror.Options{URL: s.URL(), Access: s.Access})
	r.Wait(t, w.Seq)
	r.Stop(t)
	if _, err := replay.Open(t.Context(), []string{s.URL()}); err == nil {
		t.Error("a stranger gets in")
	}
	for k, v := range map[string]string{"NATS_CREDS": s.Access.Credentials, "NATS_CA": s.Access.CA, "NATS_CERT": s.Access.Cert, "NATS_KEY": s.Access.Key} {
		t.Setenv(k, v)
	}
	if logs := opened(t, s.URL()+"/"+mirrortest.Cluster); len(logs) != 1 || logs[0].Node != "d0" {
		t.Errorf("logs %+v", logs)
	}
}

func opened(t *testing.T, src string) []*replay.Log {
	t.Helper()
	logs, err := replay.Open(t.Context(), []string{src})
	if err != nil {
		t.Fatal(err)
	}
	return logs
}

func violates(v *replay.Verdict, words string) bool {
	for _, f := range v.Violations {
		if strings.Contains(f.Detail, words) {
			return true
		}
	}
	return false
}

func copyTree(t *testing.T, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}
