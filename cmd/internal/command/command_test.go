package command

import (
	"bytes"
	"errors"
	"testing"

	"github.com/spf13/cobra"
)

func TestUsageErrorsNameTheCommandOnce(t *testing.T) {
	t.Parallel()
	nothing := func(*cobra.Command, []string) error { return nil }
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "a command is missing (see tool --help)"},
		{[]string{"nope"}, `unknown command "nope" for "tool"`},
		{[]string{"--nope"}, "unknown flag: --nope"},
		{[]string{"config"}, "config: a command is missing (see tool config --help)"},
		{[]string{"config", "nope"}, `unknown command "nope" for "tool config"`},
		{[]string{"config", "print"}, "config print: FILE is missing"},
		{[]string{"config", "print", "a", "b"}, `config print: unexpected argument "b"`},
		{[]string{"config", "print", "--nope"}, "config print: unknown flag: --nope"},
		{[]string{"completion", "tcsh"}, `completion: "tcsh" is none of bash, zsh, fish`},
		{[]string{"help", "nope"}, `help: unknown command "nope"`},
		{[]string{"config", "print", "a"}, ""},
	} {
		var out bytes.Buffer
		show := &cobra.Command{Use: "print FILE", Args: ExactArgs("FILE"), RunE: nothing}
		root := Root(Group("tool", "a tool", Group("config", "its keys", show)), "1", Streams{Stdin: &out, Stdout: &out, Stderr: &out})
		root.SetArgs(c.args)
		err := root.Execute()
		if c.want == "" {
			if err != nil {
				t.Errorf("%q: %v", c.args, err)
			}
			continue
		}
		var e *Error
		if !errors.As(err, &e) || e.Code != ExitUsage || e.Text != c.want {
			t.Errorf("%q: %v, want %s", c.args, err, c.want)
		}
		if out.Len() != 0 {
			t.Errorf("%q printed %q", c.args, out.String())
		}
	}
}
