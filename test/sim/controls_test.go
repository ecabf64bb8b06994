package sim_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pdlog/pdlog/test/ladder"
)

// edit replaces one piece of a source file. The new text asks mutant(NAME), so
// that all mutants live in one build and one of them is on.
type edit struct{ file, from, to string }

// control is a planted fault that the simulation has to find.
type control struct {
	name  string
	rule  []string // what may find it; empty = any rule
	edits []edit
}

const (
	decodeAbort   = "projector/decode_abort.go"
	decodeOpen    = "projector/decode_open.go"
	decodeRelease = "projector/decode_release.go"
	decodeRoom    = "projector/decode_room.go"
	prefillAbort  = "projector/prefill_abort.go"
	prefillRoom   = "projector/prefill_room.go"
	prefillChunk  = "projector/prefill_chunk.go"
	applyPrefill  = "projector/apply_prefill.go"
	applyFile     = "projector/apply.go"
	peersFile     = "projector/peers.go"
	pastFile      = "projector/past.go"
	stateFile     = "projector/state.go"
	machineFile   = "projector/machine.go"
)

// controls are the planted faults. Each edit has to apply to the code as it is:
// who changes the code around one mends the control.
var controls = []control{
	{"ack-before-drain", []string{"I1", "I3"}, []edit{{prefillAbort, "	case open > 0:\n", "	case open > 0 && !mutant(`ack-before-drain`):\n"}}},
	{"ack-without-generation", nil, []edit{{decodeAbort, "case c.Generation != nil && *c.Generation != r.Gen:", "case !mutant(`ack-without-generation`) && c.Generation != nil && *c.Generation != r.Gen:"},
		{decodeAbort, "	if x != nil && x.RoomSeq != 0 {\n		if r := m.room(x.RoomSeq); r != nil && r.Room == c.Room {\n			return r\n		}\n		return nil\n	}\n	if c.Generation", "	if mutant(`ack-without-generation`) {\n		return m.current(c.Room)\n	}\n	if x != nil && x.RoomSeq != 0 {\n		if r := m.room(x.RoomSeq); r != nil && r.Room == c.Room {\n			return r\n		}\n		return nil\n	}\n	if c.Generation"},
		{decodeAbort, "x.RoomSeq != r.Seq || !m.proves", "!mutant(`ack-without-generation`) && x.RoomSeq != r.Seq || !m.proves"}}},
	{"tokens-reset-per-room", nil, []edit{{applyPrefill, "	m.st.byNumber[r.Room] = append(m.st.byNumber[r.Room], r.Seq)\n	return r", "	if mutant(`tokens-reset-per-room`) {\n		for _, k := range m.st.byNumber[r.Room] {\n			if old := m.st.PRooms[k]; old != nil {\n				clear(old.Tokens)\n			}\n		}\n	}\n	m.st.byNumber[r.Room] = append(m.st.byNumber[r.Room], r.Seq)\n	return r"}}},
	{"arm-after-send", []string{"log before wire"}, []edit{{decodeAbort, "	m.do(SendAbort{", "	gate := m.st.Seq\n	if mutant(`arm-after-send`) {\n		gate = 0\n	}\n	m.doAfter(gate, SendAbort{"}}},
	{"generation-restarts", []string{"I4"}, []edit{{applyFile, "	st.LastGen = max(st.LastGen, p.GenerationBase)", "	if mutant(`generation-restarts`) {\n		st.LastGen = 0\n	}\n	st.LastGen = max(st.LastGen, p.GenerationBase)"}}},
	{"fence-before-proof", nil, []edit{{decodeRelease, "	m.do(Fence{Room: r.Room, RoomSeq: r.Seq, Lease: p.Lease, Rank: p.Rank, To: p.To})\n}", "	m.do(Fence{Room: r.Room, RoomSeq: r.Seq, Lease: p.Lease, Rank: p.Rank, To: p.To})\n	if mutant(`fence-before-proof`) {\n		m.emit(&events.Event{Room: r.Room, RoomSeq: r.Seq, Rank: string(p.Rank), Payload: &events.Event_Fenced{Fenced: &events.Fenced{To: string(p.To), Lease: p.Lease, Evidence: events.FenceKind_FENCE_KIND_HARD}}})\n		m.tryRelease(r)\n	}\n}"}}},
	{"fence-failure-taken-for-proof", nil, []edit{{decodeRelease, "	switch c.Evidence {\n", "	if mutant(`fence-failure-taken-for-proof`) {\n		c.Evidence = events.FenceKind_FENCE_KIND_HARD\n	}\n	switch c.Evidence {\n"}}},
	{"receipt-counted", nil, []edit{{decodeAbort, "	case c.Rank == nil && !cannot:\n", "	case c.Rank == nil && !cannot && mutant(`receipt-counted`) && r.Gen != 0:\n		for _, q := range r.Pairs {\n			if q.To == c.At && q.owesEvidence() {\n				q.Evidence = events.Basis_BASIS_ACKS\n			}\n		}\n		return 0\n	case c.Rank == nil && !cannot:\n"}}},
	{"cannot-tell-acked", nil, []edit{{prefillAbort, "	case unsure, open > 0 && r.uncertainOld(t.Rank), open", "	case mutant(`cannot-tell-acked`) && r.OldLife:\n		if !pr.Drained {\n			m.emit(&events.Event{Room: r.Room, RoomSeq: r.Seq, Rank: string(t.Rank), Payload: &events.Event_Drained{Drained: &events.Drained{Writes: pr.Writes}}})\n		}\n		m.sendAck(r.Room, r.Seq, t.Rank, t.To, t.Address, t.Gen, t.RoomSeq, events.Proof_PROOF_DRAINED, repeat)\n	case unsure, open > 0 && r.uncertainOld(t.Rank), open"}}},
	{"late-metadata-revives", nil, []edit{{prefillRoom, "	case seq != 0 && m.receipt(c.Room, node, logID, seq) != nil:", "	case mutant(`late-metadata-revives`):\n		return \"\"\n	case seq != 0 && m.receipt(c.Room, node, logID, seq) != nil:"}}},
	{"status-promoted", nil, []edit{{decodeRoom, "	case !r.live():\n		ev.Why = events.NotCounted_NOT_COUNTED_ENDED\n		m.emit(e)", "	case !r.live() && c.Success && mutant(`status-promoted`):\n		ev.Counted = true\n		m.emit(e)\n		m.emit(&events.Event{Room: r.Room, RoomSeq: r.Seq, Payload: &events.Event_RoomSucceeded{RoomSucceeded: &events.RoomSucceeded{}}})\n	case !r.live():\n		ev.Why = events.NotCounted_NOT_COUNTED_ENDED\n		m.emit(e)"}}},
	{"retry-new-generation", []string{"I4"}, []edit{{decodeAbort, "	rt.attempt++\n", "	rt.attempt++\n	if mutant(`retry-new-generation`) && rt.attempt > 1 {\n		r.Gen++\n	}\n"}}},
	{"release-per-rank", nil, []edit{{decodeRelease, "		case p.Evidence == 0:\n			return\n", "		case p.Evidence == 0 && mutant(`release-per-rank`) && len(m.missing(r)) < r.published():\n		case p.Evidence == 0:\n			return\n"}}},
	{"source-freed-early", []string{"I8"}, []edit{{prefillRoom, "	if len(r.Tokens) == 0 && !r.SourceFree {", "	if (len(r.Tokens) == 0 || mutant(`source-freed-early`)) && !r.SourceFree {"}}},
	{"peer-restart-is-proof", nil, []edit{{peersFile, "	m.refence(node, \"peer_restart\", cause)\n", "	if mutant(`peer-restart-is-proof`) {\n		for _, key := range sortedKeys(m.st.Rooms) {\n			r := m.st.Rooms[key]\n			for _, p := range r.Pairs {\n				if r.Outcome == OutcomeFailed && p.Rank.Node() == node && p.owesEvidence() {\n					m.emit(&events.Event{Room: r.Room, RoomSeq: r.Seq, Rank: string(p.Rank), Payload: &events.Event_PeerRestartProven{PeerRestartProven: &events.PeerRestartProven{To: string(p.To), Evidence: events.FenceKind_FENCE_KIND_HARD, OldBoot: p.Boot}}})\n				}\n			}\n			m.tryRelease(r)\n		}\n	}\n	m.refence(node, \"peer_restart\", cause)\n"}}},
	{"post-before-metadata", []string{"log before wire"}, []edit{{prefillChunk, "		m.doAfter(d.MetaSeq, w)", "		if mutant(`post-before-metadata`) {\n			m.doAfter(0, w)\n			continue\n		}\n		m.doAfter(d.MetaSeq, w)"}, {"test/sim/node.go", "		gate = max(gate, e.After)\n", "		gate = max(gate, e.After)\n		if _, ok := e.Do.(projector.PostWrite); ok && mutant(`post-before-metadata`) {\n			gate = 0\n		}\n"}}},
	{"published-after-arming", nil, []edit{{decodeOpen, "	case r.live(): // after a terminal", "	case r.live() || mutant(`published-after-arming`): // after a terminal"}, {decodeAbort, "		if p.Publish == PublishStarted { // nothing", "		if p.Publish == PublishStarted && !mutant(`published-after-arming`) { // nothing"}}},
	{"outcome-told-early", []string{"log before wire"}, []edit{{decodeRoom, "	m.do(Tell{Kind: TellSucceeded,", "	gate := m.st.Seq\n	if mutant(`outcome-told-early`) {\n		gate = 0\n	}\n	m.doAfter(gate, Tell{Kind: TellSucceeded,"}}},
	{"release-told-early", []string{"log before wire"}, []edit{{decodeRelease, "	m.do(Tell{Kind: TellReleased,", "	gate := m.st.Seq\n	if mutant(`release-told-early`) {\n		gate = 0\n	}\n	m.doAfter(gate, Tell{Kind: TellReleased,"}, {decodeRelease, "		m.do(RevokeLease{RoomSeq: seq,", "		if mutant(`release-told-early`) {\n			m.doAfter(0, RevokeLease{RoomSeq: seq, Lease: p.Lease, Rank: p.Rank, To: p.To})\n			continue\n		}\n		m.do(RevokeLease{RoomSeq: seq,"}}},
	{"fence-leaves-second-key", []string{"I1"}, []edit{{"test/sim/memory.go", "func (l *lease) revoke() { l.revoked[0], l.revoked[1] = true, true }", "func (l *lease) revoke() { l.revoked[0], l.revoked[1] = true, !mutant(`fence-leaves-second-key`) }"}}},
	{"copy-after-abort", []string{"I6"}, []edit{{decodeRoom, "	case !r.live():\n		m.reject(Rejected{Kind: \"aux_data\"", "	case !r.live() && !mutant(`copy-after-abort`):\n		m.reject(Rejected{Kind: \"aux_data\""}}},
	{"copy-does-not-hold", nil, []edit{{decodeRelease, "|| len(r.Copies) > 0 {", "|| len(r.Copies) > 0 && !mutant(`copy-does-not-hold`) {"}}},
	{"wiped-log-vouches", nil, []edit{{decodeAbort, "		return false // another log: a wiped node must not answer for its earlier one", "		return mutant(`wiped-log-vouches`) // another log: a wiped node must not answer for its earlier one"}, {pastFile, "	if !bytes.Equal(x.SeenLogID, m.st.LogID) {\n		return true", "	if !bytes.Equal(x.SeenLogID, m.st.LogID) {\n		return !mutant(`wiped-log-vouches`)"},
		{prefillAbort, "!m.st.holds(c.Ext.PublishedBoot):", "!m.st.holds(c.Ext.PublishedBoot) && !mutant(`wiped-log-vouches`):"}, {prefillAbort, "	case otherLog, m.st.UnknownPast &&", "	case otherLog, !mutant(`wiped-log-vouches`) && m.st.UnknownPast &&"}}},
	{"restored-log-vouches", nil, []edit{{prefillAbort, "	case c.Ext != nil && c.Ext.PublishedBoot != 0", "	case !mutant(`restored-log-vouches`) && c.Ext != nil && c.Ext.PublishedBoot != 0"}, {pastFile, "	if m.lostEnd(x) &&", "	if !mutant(`restored-log-vouches`) && m.lostEnd(x) &&"}}},
	{"posted-after-abort", []string{"I3", "I1", "I6", "I8"}, []edit{{prefillChunk, "	case !r.live():\n		m.skip(r, c, \"the room has ended\")", "	case !r.live() && !mutant(`posted-after-abort`):\n		m.skip(r, c, \"the room has ended\")"}}},
	{"error-ends-the-write", nil, []edit{{prefillChunk, "	case c.Outcome == WriteUncertain:\n", "	case c.Outcome == WriteUncertain && mutant(`error-ends-the-write`):\n		e := ended()\n		e.Payload = &events.Event_ChunkFailed{ChunkFailed: &events.ChunkFailed{Token: t.ID, Chunk: t.Chunk, To: string(t.To), Reason: c.Reason, Proven: true}}\n		m.emit(e)\n		m.failP(r, events.AbortCause_ABORT_CAUSE_TRANSFER_FAILED, c.Reason, m.cfg.Node)\n	case c.Outcome == WriteUncertain:\n"}}},
	{"target-overwritten", []string{"I5"}, []edit{{stateFile, "		if t.Rank == rank && t.Address == addr {", "		if t.Rank == rank && (t.Address == addr || mutant(`target-overwritten`)) {"}}},
	{"lower-generation-replaces", []string{"I5"}, []edit{{prefillAbort, "	case t != nil && lowerGen(c.Generation, t.Gen):", "	case !mutant(`lower-generation-replaces`) && t != nil && lowerGen(c.Generation, t.Gen):"}}},
	{"no-retry", []string{"I2"}, []edit{{decodeAbort, "		if p.owesEvidence() && !p.CannotTell {\n			return rt.at, true", "		if p.owesEvidence() && !p.CannotTell && !mutant(`no-retry`) {\n			return rt.at, true"}, {decodeRelease, "		m.fenceMissing(r, \"ack_timeout\", cause)\n", "		if mutant(`no-retry`) {\n			return\n		}\n		m.fenceMissing(r, \"ack_timeout\", cause)\n"}}},
	{"coverage-not-checked", []string{"I6"}, []edit{{decodeRoom, "	if gap := r.gap(); gap != \"\" {", "	if gap := r.gap(); gap != \"\" && !mutant(`coverage-not-checked`) {"}}},
}

// overlay writes the mutated files and the list that `go build -overlay` takes.
func overlay(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	text := map[string]string{}
	for _, c := range controls {
		for _, e := range c.edits {
			if _, ok := text[e.file]; !ok {
				b, err := os.ReadFile(filepath.Join(root, e.file))
				if err != nil {
					t.Fatal(err)
				}
				text[e.file] = string(b)
			}
			if n := strings.Count(text[e.file], e.from); n != 1 {
				t.Fatalf("control %s: its place in %s is there %d times:\n%s", c.name, e.file, n, e.from)
			}
			text[e.file] = strings.Replace(text[e.file], e.from, e.to, 1)
		}
	}
	const on = "\n\nimport \"os\"\n\nvar mutantOn = os.Getenv(\"PDLOG_MUTANT\")\n\nfunc mutant(name string) bool { return mutantOn == name }\n"
	text["projector/mutant.go"] = "package projector" + on
	text["test/sim/mutant.go"] = "package sim" + on
	list := map[string]map[string]string{"Replace": {}}
	for file, s := range text {
		to := filepath.Join(dir, strings.ReplaceAll(file, "/", "_"))
		if err := os.WriteFile(to, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
		list["Replace"][filepath.Join(root, file)] = to
	}
	b, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestControls: each planted fault is found within 50 seeds. The production
// build holds no trace of them: they are laid over the sources of this build.
func TestControls(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs pdsim for some seconds")
	}
	bin := build(t, overlay(t))
	only := os.Getenv("PDLOG_SIM_CONTROL")
	for _, c := range controls {
		if only != "" && only != c.name {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			start := time.Now()
			total, text := run(t, bin, []string{"PDLOG_MUTANT=" + c.name}, "-seed", "1", "-seeds", strconv.Itoa(50))
			ladder.Report(t, ladder.Row{Rung: "simulation controls", What: c.name, Runs: total.Runs, Faults: 1, Found: total.Failed, Took: time.Since(start)})
			if total.Failed == 0 {
				t.Fatalf("not found in %d seeds", total.Runs)
			}
			line, _, _ := strings.Cut(text, "\n")
			t.Logf("found in seed %d: %s", total.Runs, line)
			rule := ""
			if _, after, ok := strings.Cut(line, " rule="); ok {
				rule = after
			}
			if len(c.rule) > 0 && !slices.ContainsFunc(c.rule, func(r string) bool { return strings.HasPrefix(rule, r+" ") }) {
				t.Errorf("found as %q, not as one of %q", rule, c.rule)
			}
		})
	}
}
