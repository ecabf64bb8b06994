package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector/invariants/historytest"
	"github.com/pdlog/pdlog/store"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"pdreplay": func() { os.Exit(Main(os.Args[1:], System())) },
		// exit CODE CMD… runs CMD and succeeds if it ends with that code.
		"exit": exitWith,
		// holdlog DIR CMD… runs CMD while this process has the log in DIR open.
		"holdlog": holdLog,
	})
}

// TestScripts runs testdata/script. Each page finds late.jsonl (an unsafe
// release, a late write), clean.jsonl (an abort with a proper ACK) and, made of
// late.jsonl, the log folders under logs/.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		UpdateScripts:       os.Getenv("UPDATE_SCRIPTS") != "",
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			// spoil FILE zeroes the meta pages of a database.
			"spoil": func(ts *testscript.TestScript, _ bool, args []string) {
				b, err := os.ReadFile(ts.MkAbs(args[0]))
				ts.Check(err)
				clear(b[:8192])
				ts.Check(os.WriteFile(ts.MkAbs(args[0]), b, 0o600))
			},
			// harm FILE truncated|flipped|half: it ends early, has bits of a record flipped,
			// or the second half of what it holds never came (its size is right, the rest zero).
			"harm": func(ts *testscript.TestScript, _ bool, args []string) {
				b, err := os.ReadFile(ts.MkAbs(args[0]))
				ts.Check(err)
				switch args[1] {
				case "truncated":
					b = b[:len(b)/3+123]
				case "flipped":
					b = flipped(b)
				case "half":
					clear(b[bytes.LastIndex(b, []byte("p/0"))/2:])
				default:
					ts.Fatalf("harm: %s?", args[1])
				}
				ts.Check(os.WriteFile(ts.MkAbs(args[0]), b, 0o600))
			},
		},
		Setup: func(env *testscript.Env) error {
			late := lateWrite()
			for name, h := range map[string]*historytest.History{"late.jsonl": late, "clean.jsonl": clean()} {
				if err := writeJSONL(filepath.Join(env.WorkDir, name), h.All); err != nil {
					return err
				}
			}
			if strings.HasSuffix(env.WorkDir, "salvage_files") {
				for _, name := range []string{"long", "long2", "long3"} {
					if err := writeLog(filepath.Join(env.WorkDir, name, "d", "log"), long().Of("d")); err != nil {
						return err
					}
				}
			}
			for _, node := range late.Nodes() {
				if err := writeLog(filepath.Join(env.WorkDir, "logs", node, "log"), late.Of(node)); err != nil {
					return err
				}
			}
			return nil
		},
	})
}

// flipped has one bit flipped in a record in the middle, in every copy that the
// database has of it.
func flipped(b []byte) []byte {
	parts := bytes.SplitAfter(b, []byte("p/0"))
	at := 0
	for _, p := range parts[:len(parts)/2] {
		at += len(p)
	}
	record := bytes.Clone(b[at-24 : at])
	harmed := bytes.Clone(record)
	harmed[len(harmed)-1] ^= 0x10
	return bytes.ReplaceAll(b, record, harmed)
}

// long is a decode node's log of 3,000 events.
func long() *historytest.History {
	h := historytest.New()
	h.Start("d", events.Role_ROLE_DECODE, 1024)
	for i := range 1000 {
		h.At(uint64(10+i)).Reserve(uint64(100+i), "d/0", []uint32{uint32(i)}, "p/0") //nolint:gosec // small
	}
	return h
}

func writeLog(dir string, evs []*events.Event) error {
	ctx := context.Background()
	log, _, err := store.Open(ctx, dir, store.Options{Node: evs[0].Node, Boot: evs[0].Boot, SegmentBytes: 256 << 10})
	if err != nil {
		return err
	}
	return errors.Join(log.Append(evs, events.Sync), log.Sync(ctx), log.Close())
}

func writeJSONL(path string, evs []*events.Event) error {
	var b []byte
	for _, e := range evs {
		b = append(events.AppendJSON(b, e), '\n')
	}
	return os.WriteFile(path, b, 0o600)
}

func start() *historytest.History {
	h := historytest.New()
	h.Start("d", events.Role_ROLE_DECODE, 64)
	h.Start("p", events.Role_ROLE_PREFILL, 64)
	return h
}

func lateWrite() *historytest.History {
	h := start()
	a := h.At(100).Open(7, "d/0", []uint32{10, 11, 12, 13}, "p/0")
	post := a.Post("p/0", 2, a.Pages, false)
	h.At(120)
	a.Abort()
	h.At(121)
	a.Hear("p/0")
	h.At(1120)
	a.D("", &events.AckTimedOut{Generation: a.Generation, Missing: []*events.Pair{{Rank: "p/0", To: "d/0"}}})
	a.Release(events.Basis_BASIS_TIMEOUT)
	h.At(1300)
	b := h.Open(8, "d/0", []uint32{12, 13, 14}, "p/0")
	b.Write("p/0", 0, b.Pages, true)
	b.Succeed()
	h.At(4000)
	a.Land(post, true)
	a.Complete(post)
	a.Drain("p/0")
	return h
}

func clean() *historytest.History {
	h := start()
	r := h.At(5).Open(7, "d/0", []uint32{10, 11, 12, 13}, "p/0", "p/1")
	slow := r.Post("p/0", 0, []uint32{10, 11}, false)
	h.At(20)
	r.Abort()
	h.At(21)
	r.Hear("p/0")
	r.Hear("p/1")
	r.Drain("p/1")
	r.Ack("p/1")
	h.At(45)
	r.Land(slow, false)
	r.Complete(slow)
	r.Drain("p/0")
	r.Ack("p/0")
	r.Release(events.Basis_BASIS_ACKS)
	return h
}

// exitWith is the script command exit.
func exitWith() {
	want, err := strconv.Atoi(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "exit:", err)
		os.Exit(125)
	}
	if have := run(os.Args[2:]); have != want {
		fmt.Fprintf(os.Stderr, "exit: have %d, want %d\n", have, want)
		os.Exit(124)
	}
}

// run runs a command; pdreplay in this very process, whose start costs most.
func run(args []string) int {
	if args[0] == "pdreplay" {
		return Main(args[1:], System())
	}
	cmd := exec.Command(args[0], args[1:]...) //nolint:gosec // of a script
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	var ee *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &ee) {
		fmt.Fprintln(os.Stderr, "run:", err)
		os.Exit(125)
	}
	return cmd.ProcessState.ExitCode()
}

// holdLog is the script command holdlog.
func holdLog() {
	log, _, err := store.Open(context.Background(), os.Args[1], store.Options{Node: "d", Boot: 99, SegmentBytes: 256 << 10})
	if err != nil {
		fmt.Fprintln(os.Stderr, "holdlog:", err)
		os.Exit(125)
	}
	code := run(os.Args[2:])
	if err := log.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "holdlog:", err)
		os.Exit(125)
	}
	os.Exit(code)
}
