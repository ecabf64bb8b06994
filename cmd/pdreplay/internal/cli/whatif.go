package cli

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/pdlog/pdlog/cmd/internal/command"
	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/replay"
	"github.com/pdlog/pdlog/replay/whatif"
)

func whatifCommand(sys Sys) *cobra.Command {
	c := &cobra.Command{
		Use: "whatif SRC… --release-policy P", Short: "the same inputs under another release policy", Args: sources(),
		Long: `Replays the recorded inputs of every decode node through the same decider under
another release policy or ack timeout: which releases would differ, how long
pages would have been held, which corruptions would not have happened. A fence
that the recorded run did not try succeeds exactly if the peer's recorded fence
kind says so. Exit 0 if it could answer.`,
	}
	out := outputFlag(c.Flags())
	policy := &choice{words: []string{"fence", "hold", "timeout"}}
	c.Flags().Var(policy, "release-policy", "policy to try (required)")
	timeout := c.Flags().Duration("ack-timeout", 0, "ack timeout to try; as recorded if left out")
	c.RunE = func(c *cobra.Command, args []string) error {
		plan := whatif.Plan{AckTimeout: *timeout}
		switch policy.value {
		case "fence":
			plan.Policy = events.Policy_POLICY_FENCE
		case "hold":
			plan.Policy = events.Policy_POLICY_HOLD
		case "timeout":
			plan.Policy = events.Policy_POLICY_TIMEOUT
		default:
			return command.Usagef("whatif: --release-policy is missing")
		}
		if c.Flags().Changed("ack-timeout") && *timeout < time.Millisecond {
			return command.Usagef("whatif: --ack-timeout: %s is less than 1ms", *timeout)
		}
		logs, err := replay.Open(c.Context(), args)
		if err != nil {
			return err
		}
		res, err := whatif.Run(c.Context(), logs, plan)
		if err != nil {
			return err
		}
		if out.value == "json" {
			return writeJSON(sys.Stdout, res)
		}
		return res.Write(sys.Stdout)
	}
	return c
}
