package model_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// needSpin skips, by name, where the model checker or a C compiler is missing.
func needSpin(t *testing.T) {
	t.Helper()
	for _, tool := range []string{"spin", "gcc"} {
		if _, err := exec.LookPath(tool); err != nil {
			if os.Getenv("PDLOG_NEED_SPIN") != "" {
				t.Fatalf("%s is not installed, and PDLOG_NEED_SPIN is set", tool)
			}
			t.Skipf("needs %s (Debian packages spin and gcc)", tool)
		}
	}
}

// verifier is a compiled model.
type verifier struct{ dir string }

// compile makes the verifier of abort.pml with the given -D names and C flags.
func compile(t *testing.T, defines, flags []string) verifier {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"abort.pml", "trace.h"} {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	args := []string{"-a"}
	for _, d := range defines {
		args = append(args, "-D"+d)
	}
	command(t, dir, "spin", append(args, "abort.pml")...)
	command(t, dir, "gcc", append(append([]string{"-w", "-o", "pan"}, flags...), "pan.c")...)
	return verifier{dir}
}

func command(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

// outcome is what a search came to.
type outcome struct {
	errors    int
	states    float64
	depth     int
	truncated bool // it did not see everything
	took      time.Duration
	text      string
}

var (
	reErrors = regexp.MustCompile(`depth reached (\d+), errors: (\d+)`)
	reStates = regexp.MustCompile(`([0-9.e+]+) states, stored`)
)

func (v verifier) run(t *testing.T, env []string, args ...string) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(v.dir, "pan"), args...)
	cmd.Dir = v.dir
	cmd.Env = append(os.Environ(), env...)
	start := time.Now()
	b, err := cmd.CombinedOutput()
	o := outcome{took: time.Since(start), text: string(b)}
	m := reErrors.FindStringSubmatch(o.text)
	if m == nil {
		t.Fatalf("pan %v: %v\n%s", args, err, b)
	}
	o.depth, _ = strconv.Atoi(m[1])
	o.errors, _ = strconv.Atoi(m[2])
	if s := reStates.FindStringSubmatch(o.text); s != nil {
		o.states, _ = strconv.ParseFloat(s[1], 64)
	}
	o.truncated = strings.Contains(o.text, "max search depth too small") || strings.Contains(o.text, "out of memory")
	return o
}
