package cli

import (
	"context"
	"iter"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/replay"
)

// view is a history and the logs it is from. A log that is damaged, or copies
// that differ, do not end a view: it says what the rest tells, and the command
// ends with that damage.
type view struct {
	logs    []*replay.Log
	history *replay.History
	damage  error
}

func (v view) gaps() []replay.Gap { return v.history.Missing(v.logs) }

// gatherFor folds what a filter needs. Views fold whole histories: a time window
// would hide owners and releases from them, so it selects among their results.
// But for one page, one room or one request the rooms concerned are enough.
func gatherFor(ctx context.Context, sys Sys, f *replay.Filter, srcs []string) (v view, err error) {
	if v.logs, err = replay.Open(ctx, srcs); err != nil {
		return v, err
	}
	stream, stop, err := streamFor(ctx, sys, f, v.logs)
	if err != nil {
		return v, err
	}
	defer stop()
	v.history, err = replay.Gather(replay.Readable(stream, &v.damage))
	return v, err
}

// streamFor merges the events of the rooms that a filter is about; all of them
// if it is about none.
func streamFor(ctx context.Context, sys Sys, f *replay.Filter, logs []*replay.Log) (stream iter.Seq2[*events.Event, error], stop func(), err error) {
	var focus replay.Focus
	var find func() error
	switch {
	case len(f.Pages) == 1 && len(f.Nodes) < 2:
		node := ""
		if len(f.Nodes) == 1 {
			node = f.Nodes[0]
		}
		find = func() error { focus, err = replay.FocusOn(ctx, logs, node, f.Pages[0]); return err }
	case len(f.Requests) > 0:
		find = func() error { focus, err = replay.FocusOnRequests(ctx, logs, f.Requests); return err }
	default:
		return replay.Merge(ctx, logs), showProgress(sys, logs, 1), nil
	}
	stop = showProgress(sys, logs, 2)
	if err := find(); err != nil {
		stop()
		return nil, nil, err
	}
	return replay.MergeFocus(ctx, logs, focus), stop, nil
}
