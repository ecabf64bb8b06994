// Package command is what the command lines of pdnode and pdreplay share: exit
// codes, usage errors, and the commands that every root has.
package command

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// Exit codes of cli.md.
const (
	ExitOK    = 0
	ExitBad   = 1 // answered, and the answer is bad
	ExitUsage = 2 // bad usage or bad input
	ExitFault = 3 // could not run
)

// Error is an error that knows its exit code. An empty text prints nothing:
// the answer stands on stdout already.
type Error struct {
	Code int
	Text string
}

func (e *Error) Error() string { return e.Text }

// ErrBad ends a command whose answer is bad and was printed.
var ErrBad = &Error{Code: ExitBad}

// Usagef is an error about how a command was called: ExitUsage.
func Usagef(format string, args ...any) error {
	return &Error{Code: ExitUsage, Text: fmt.Sprintf(format, args...)}
}

// Group is a command that only holds others.
func Group(use, short string, sub ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use: use, Short: short,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return Usagef("unknown command %q for %q", args[0], c.CommandPath())
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error {
			return usage(c, "a command is missing (see %s --help)", c.CommandPath())
		},
	}
	c.AddCommand(sub...)
	return c
}

// Name is the command's path below the root ("config print"), for the root
// itself empty: the line of an error begins with its name anyway.
func Name(c *cobra.Command) string {
	return strings.TrimPrefix(strings.TrimPrefix(c.CommandPath(), c.Root().Name()), " ")
}

// usage is a usage error of c.
func usage(c *cobra.Command, format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	if name := Name(c); name != "" {
		text = name + ": " + text
	}
	return Usagef("%s", text)
}

// ExactArgs is cobra.ExactArgs with our words: one argument for each name.
func ExactArgs(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) < len(names) {
			return usage(c, "%s is missing", names[len(args)])
		}
		if len(args) > len(names) {
			return usage(c, "unexpected argument %q", args[len(names)])
		}
		return nil
	}
}

// Streams are the three that a process begins with.
type Streams struct {
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
}

// Root makes c the root of a command line: its streams, errors of one line, and
// the commands version, completion and help.
func Root(c *cobra.Command, version string, s Streams) *cobra.Command {
	text := versionText(c.Name(), version)
	c.AddCommand(versionCommand(text, s.Stdout), completionCommand(s.Stdout), manCommand(version))
	c.SetHelpCommand(helpCommand())
	c.Version = version
	c.SetVersionTemplate(text + "\n")
	c.SilenceErrors, c.SilenceUsage = true, true
	c.DisableSuggestions = true // the error stays one line
	c.CompletionOptions.DisableDefaultCmd = true
	c.SetIn(s.Stdin)
	c.SetOut(s.Stdout)
	c.SetErr(s.Stderr)
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usage(c, "%v", err)
	})
	return c
}

func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use: "help [command]", Short: "help about a command",
		RunE: func(c *cobra.Command, args []string) error {
			about, rest, err := c.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return Usagef("help: unknown command %q", args[len(args)-1])
			}
			return about.Help()
		},
	}
}

func versionText(name, version string) string {
	revision := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && len(s.Value) >= 12 {
				revision = ", " + s.Value[:12]
			}
		}
	}
	return fmt.Sprintf("%s %s (%s, %s/%s%s)", name, version, runtime.Version(), runtime.GOOS, runtime.GOARCH, revision)
}

func versionCommand(text string, stdout io.Writer) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "print the version", Args: ExactArgs(),
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(stdout, text)
			return err
		},
	}
}

func completionCommand(stdout io.Writer) *cobra.Command {
	return &cobra.Command{
		Use: "completion bash|zsh|fish", Short: "print a shell completion script",
		Args: ExactArgs("bash, zsh or fish"), ValidArgs: []string{"bash", "zsh", "fish"},
		RunE: func(c *cobra.Command, args []string) error {
			switch args[0] {
			case "bash":
				return c.Root().GenBashCompletionV2(stdout, true)
			case "zsh":
				return c.Root().GenZshCompletion(stdout)
			case "fish":
				return c.Root().GenFishCompletion(stdout, true)
			}
			return Usagef("completion: %q is none of bash, zsh, fish", args[0])
		},
	}
}
