package store

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/errors"
	"go.etcd.io/bbolt"
)

// verifyEnv names the segment that a child process verifies.
const verifyEnv = "PDLOG_STORE_VERIFY"

const (
	verifyTime     = 2 * time.Minute // 64 MiB take well under a second
	verifyStack    = 64 << 20        // a cycle of damaged pages ends soon
	exitDamaged    = 3
	exitUnreadable = 4
)

var verifyHooked atomic.Bool

// VerifyMain lets Open verify a segment in a process of its own: bbolt follows
// damaged pages into panics and faults in goroutines of its own that nobody
// can recover (store.md 2.5). A binary that opens logs calls it first in main;
// in the child it does its work and exits, else it returns at once. Without
// it, Open verifies in its own process, as far as that is safe.
func VerifyMain() {
	path := os.Getenv(verifyEnv)
	if path == "" {
		verifyHooked.Store(true)
		return
	}
	debug.SetMaxStack(verifyStack)
	err := verifyFile(path, true)
	switch {
	case err == nil:
		os.Exit(0)
	case errors.Is(err, ErrCorrupt):
		fmt.Fprintln(os.Stdout, err)
		os.Exit(exitDamaged)
	}
	fmt.Fprintln(os.Stdout, err)
	os.Exit(exitUnreadable)
}

// verifySegment has bbolt read a segment that nobody has open: every frame,
// and in a child process every page and the free list too. A *CorruptError
// means damage, whatever way it shows.
func verifySegment(ctx context.Context, path string) error {
	if !verifyHooked.Load() {
		return verifyFile(path, false)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, verifyTime, errVerifyTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Env = append(os.Environ(), verifyEnv+"="+path, "GOTRACEBACK=none")
	var out, trouble bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &trouble
	err := cmd.Start()
	if err != nil { // no process to be had says nothing about the log
		return verifyFile(path, false)
	}
	err = cmd.Wait()
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, errVerifyTime) {
		return cause
	}
	bad := func(why string) error { return &CorruptError{File: path, Err: errors.Newf("bbolt: %s", why)} }
	status, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
	switch {
	case errors.Is(context.Cause(ctx), errVerifyTime):
		return bad(fmt.Sprintf("verification did not end within %v", verifyTime))
	case status.Exited() && status.ExitStatus() == exitDamaged:
		return bad(strings.TrimSpace(out.String()))
	case status.Exited() && status.ExitStatus() == exitUnreadable:
		return errors.Newf("verify %s: %s", path, strings.TrimSpace(out.String()))
	case status.Signaled() && status.Signal() == syscall.SIGKILL: // somebody's, or no memory
		return errors.Newf("verify %s: the process was killed", path)
	}
	first, _, _ := strings.Cut(strings.TrimSpace(trouble.String()), "\n")
	return bad(fmt.Sprintf("verification died (%v): %s", cmd.ProcessState, first))
}

var errVerifyTime = errors.New("verification takes too long")

// verifyFile reads one segment through bbolt. wholly needs a process that may
// die: tx.Check runs in a goroutine of bbolt's own, and goes on after its
// first error.
func verifyFile(path string, wholly bool) error {
	return guard(path, func() error {
		db, err := bbolt.Open(path, 0o644, &bbolt.Options{ReadOnly: true, Timeout: lockTimeout, PreLoadFreelist: wholly})
		if err != nil {
			if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
				return errors.Wrapf(err, "open %s", path)
			}
			return &CorruptError{File: path, Err: errors.Wrap(err, "bbolt: open")}
		}
		err = db.View(func(tx *bbolt.Tx) error {
			v, err := viewOf(tx)
			if err != nil {
				return err
			}
			s := &segment{path: path}
			m, err := getMeta(path, v.meta)
			if err != nil {
				return err
			}
			s.first = m.FirstSeq
			if err := newChecker(head{}, false).scan(s, v, true, nil); err != nil || !wholly {
				return err
			}
			for err := range tx.Check() {
				return &CorruptError{File: path, Err: err} // the process ends with it
			}
			return checkOverflow(path, tx)
		})
		return errors.CombineErrors(err, db.Close())
	})
}

// checkOverflow finds pages that are in use and on the free list, where
// tx.Check does not look: behind the first page of a large one.
func checkOverflow(path string, tx *bbolt.Tx) error {
	for id := 2; ; {
		p, err := tx.Page(id)
		if err != nil {
			return &CorruptError{File: path, Err: err}
		}
		if p == nil {
			return nil
		}
		if p.Type == "free" {
			id++
			continue
		}
		for i := 1; i <= p.OverflowCount; i++ {
			if q, err := tx.Page(id + i); err != nil || q == nil || q.Type == "free" {
				return &CorruptError{File: path, Err: errors.Newf("page %d is part of page %d and free", id+i, id)}
			}
		}
		id += p.OverflowCount + 1
	}
}
