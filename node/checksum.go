package node

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/projector"
	"github.com/pdlog/pdlog/rdma"
)

// checkTime bounds the reading of one room's pages.
const checkTime = 10 * time.Second

// check reads a room's pages again, before it succeeds, and compares them with
// the checksums of their sources (rdma.Lease.Verify). What came without one, or
// can not be read, is said and not guessed.
func (r *receivePlane) check(a projector.CheckPages) {
	ctx, cancel := context.WithTimeout(context.Background(), checkTime)
	defer cancel()
	out := projector.PagesChecked{RoomSeq: a.RoomSeq}
	seen := map[projector.PageReport]bool{}
	grants := r.grantsOf(a.RoomSeq)
	if len(grants) == 0 {
		out.Skipped = "the node has started anew since the pages landed"
	}
	for _, g := range grants {
		bad, err := g.pages.Verify(ctx)
		if err != nil {
			out.Skipped = fmt.Sprintf("pages of %s written by %s: %v", g.to, g.rank, err)
			if errors.Is(err, rdma.ErrNoChecksum) {
				out.Skipped = fmt.Sprintf("%s sent pages without checksums", g.rank)
			}
		}
		for _, p := range r.reports(g, bad, "bytes changed after they landed from %s") {
			if !seen[p] {
				seen[p] = true
				out.Bad = append(out.Bad, p)
			}
		}
	}
	r.tell(out)
}

// grantsOf lists the live grants of a room incarnation that are on pages.
func (r *receivePlane) grantsOf(roomSeq uint64) []*grant {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*grant
	for _, g := range r.grants {
		if g.roomSeq == roomSeq && g.pages != nil && !g.revoked {
			out = append(out, g)
		}
	}
	slices.SortFunc(out, func(a, b *grant) int { return cmp.Compare(a.id, b.id) })
	return out
}

// reports names the pages that ranges of a grant's memory lie in. format takes
// the writer's rank.
func (r *receivePlane) reports(g *grant, bad []rdma.Range, format string) []projector.PageReport {
	m := r.memory.rank(g.to.Index())
	if m == nil {
		return nil
	}
	var out []projector.PageReport
	for _, b := range bad {
		for p := b.Off / m.pageBytes; p <= (b.End()-1)/m.pageBytes; p++ {
			from, to := max(b.Off, p*m.pageBytes), min(b.End(), (p+1)*m.pageBytes)
			out = append(out, projector.PageReport{
				Room: g.room, Page: uint32(p), To: g.to, Detail: fmt.Sprintf(format, g.rank), //nolint:gosec // pages are below 2^32
				PageOff: from - p*m.pageBytes, PageLen: to - from,
			})
		}
	}
	return out
}

// differ records pages whose bytes were not those of their source when they
// landed. The writer hears of it from the provider and fails the room as well;
// here the page is named, and the room is failed whatever the writer says.
func (r *receivePlane) differ(n rdma.Notif) {
	r.mu.Lock()
	g := r.grants[uint64(n.Tag)]
	pages, _, part := r.touched(n.Ranges)
	r.mu.Unlock()
	if g == nil || g.foreign {
		r.tell(projector.Rejected{Kind: "write", Reason: "checksum of a write under a key that is not known", From: string(n.Peer)})
		return
	}
	for _, p := range pages {
		r.tell(projector.PageReport{
			Room: g.room, Page: p, To: g.to,
			Detail:  fmt.Sprintf("chunk %d of %s landed with other bytes than were sent", n.Meta, g.rank),
			PageOff: part.Off, PageLen: part.Len,
		})
	}
}
