package mirror_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/nats-io/nats.go"

	"github.com/pdlog/pdlog/store/mirror"
)

// Follows what is quarantined anywhere in a fleet until it is interrupted, from the
// beginning of the stream on. (log id, seq) names a milestone for whoever must
// count each once.
func ExampleFollowAudit() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	nc, err := mirror.Dial("nats://127.0.0.1:4222", mirror.Access{}, nats.MaxReconnects(-1))
	if err != nil {
		fmt.Fprintln(os.Stderr, "connect:", err)
		return
	}
	defer nc.Close()
	err = mirror.FollowAudit(ctx, nc, mirror.AuditOptions{Cluster: "prod", Type: "Quarantined", FromStart: true}, func(m mirror.Milestone) error {
		fmt.Printf("%s/%d %s\n", m.Node, m.Seq, m.JSON)
		return nil
	})
	if err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "follow:", err)
	}
}
