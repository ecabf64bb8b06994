package audit

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cockroachdb/errors"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pdlog/pdlog/store/mirror"
)

// bucket is the key-value bucket (a JetStream stream) of all groups. Keys are
// GROUP.member.ID and GROUP.node.CLUSTER.NODE, names as in the mirror's subjects.
const bucket = "PDLOG_AUDITORS"

// maxLate bounds the findings of a node that a successor is told of, beyond the
// mark up to which everything was told.
const maxLate = 256

// claim is what the bucket says of one node: whose it is, and how far it was
// judged.
type claim struct {
	Owner  string   `json:"owner"` // auditor; empty = nobody
	LogID  string   `json:"log_id"`
	Stream uint64   `json:"stream_seq"` // message of the mirror to read on from; 0 = its beginning
	Seq    uint64   `json:"seq"`        // what is wrong up to this event was reported
	Late   []string `json:"late,omitempty"`
	Peers  []string `json:"peers,omitempty"` // nodes that it writes to: their logs are read beside it
}

// seen is a key as the bucket last showed it.
type seen struct {
	claim
	rev uint64
	at  time.Time // by our own clock: no two clocks are ever compared
}

// hold is a node that is ours.
type hold struct {
	claim
	rev   uint64
	until time.Time // unless it is renewed
}

// group shares the nodes of a mirror among auditors. A node is its owner's for a
// lease, renewed well before its end. Whoever sees a claim unchanged for longer
// than a lease takes it, by naming the revision it saw; its old owner has stopped
// by then, since it counts the lease from before it asked for it.
type group struct {
	kv      jetstream.KeyValue
	watch   jetstream.KeyWatcher
	name    string
	cluster string
	id      string
	lease   time.Duration

	nodes   map[string]*seen // by node
	members map[string]*seen
	mine    map[string]*hold
}

func joinGroup(ctx context.Context, js jetstream.JetStream, name, cluster string, lease time.Duration, replicas int) (*group, error) {
	kv, err := js.KeyValue(ctx, bucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		kv, err = js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
			Bucket: bucket, Description: "who audits which node, and how far", History: 1, Storage: jetstream.FileStorage, Replicas: replicas,
		})
		if errors.Is(err, jetstream.ErrBucketExists) {
			kv, err = js.KeyValue(ctx, bucket)
		}
	}
	if err != nil {
		return nil, errors.Wrapf(err, "bucket %s", bucket)
	}
	random := make([]byte, 6)
	_, _ = rand.Read(random) // never fails
	g := &group{
		kv: kv, name: name, cluster: cluster, id: hex.EncodeToString(random), lease: lease,
		nodes: map[string]*seen{}, members: map[string]*seen{}, mine: map[string]*hold{},
	}
	g.watch, err = kv.Watch(ctx, name+".>")
	if err != nil {
		return nil, errors.Wrapf(err, "bucket %s", bucket)
	}
	for {
		select {
		case u := <-g.watch.Updates():
			if u == nil { // everything that was there
				return g, nil
			}
			g.update(u)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (g *group) memberKey(id string) string { return g.name + ".member." + id }
func (g *group) nodeKey(node string) string {
	return g.name + ".node." + strings.TrimPrefix(mirror.SubjectLog(g.cluster, node), "pdlog.log.")
}

func (g *group) update(u jetstream.KeyValueEntry) {
	s := &seen{rev: u.Revision(), at: time.Now()}
	gone := u.Operation() != jetstream.KeyValuePut
	if id, ok := strings.CutPrefix(u.Key(), g.memberKey("")); ok {
		if gone {
			delete(g.members, id)
		} else {
			g.members[id] = s
		}
		return
	}
	subject := strings.TrimPrefix(u.Key(), g.name+".node.")
	cluster, node, ok := mirror.SplitLog("pdlog.log." + subject)
	if !ok || cluster != g.cluster {
		return
	}
	if gone || json.Unmarshal(u.Value(), &s.claim) != nil {
		s.claim = claim{}
	}
	g.nodes[node] = s
}

// drain takes what the bucket has told meanwhile.
func (g *group) drain() {
	for {
		select {
		case u := <-g.watch.Updates():
			if u == nil {
				return
			}
			g.update(u)
		default:
			return
		}
	}
}

// alive counts the members, this one too.
func (g *group) alive(now time.Time) int {
	n := 1
	for id, s := range g.members {
		if id != g.id && now.Sub(s.at) < 2*g.lease {
			n++
		}
	}
	return n
}

// tick says that we live, renews what is ours and takes or gives nodes so that
// each member has its share of those on the mirror. changed: what is ours is not
// what it was.
func (g *group) tick(ctx context.Context, nodes []string) (changed bool, err error) {
	now := time.Now()
	g.drain()
	if _, err := g.kv.Put(ctx, g.memberKey(g.id), []byte("{}")); err != nil {
		return false, errors.Wrap(err, "tell the group of auditors that this one lives")
	}
	for node, h := range g.mine {
		if s := g.nodes[node]; s != nil && s.rev > h.rev && s.Owner != g.id {
			delete(g.mine, node) // it was taken: we were away for too long
			changed = true
			continue
		}
		if ok, err := g.put(ctx, node, h, now); err != nil {
			return changed, err
		} else if !ok {
			delete(g.mine, node)
			changed = true
		}
	}
	share := (len(nodes) + g.alive(now) - 1) / g.alive(now)
	for _, node := range slices.Sorted(maps.Keys(g.mine)) {
		if len(g.mine) <= share {
			break
		}
		if err := g.release(ctx, node); err != nil {
			return changed, err
		}
		changed = true
	}
	for _, node := range nodes {
		if len(g.mine) >= share {
			break
		}
		if g.mine[node] != nil || !g.free(node, now) {
			continue
		}
		h := &hold{}
		if s := g.nodes[node]; s != nil {
			h.claim, h.rev = s.claim, s.rev
		}
		ok, err := g.put(ctx, node, h, now)
		if err != nil {
			return changed, err
		}
		if ok {
			g.mine[node] = h
			changed = true
		}
	}
	return changed, nil
}

// free: nobody's, or its owner has not renewed it for longer than a lease.
func (g *group) free(node string, now time.Time) bool {
	s := g.nodes[node]
	return s == nil || s.Owner == "" || now.Sub(s.at) > g.lease+g.lease/2
}

// put writes a claim as ours if nobody has written it since; ok says so.
func (g *group) put(ctx context.Context, node string, h *hold, now time.Time) (ok bool, err error) {
	h.Owner = g.id
	b, err := json.Marshal(h.claim)
	if err != nil {
		return false, err
	}
	rev, err := g.kv.Update(ctx, g.nodeKey(node), b, h.rev)
	var api *jetstream.APIError
	if errors.As(err, &api) && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant) {
		return false, nil
	}
	if err != nil {
		return false, errors.Wrapf(err, "claim node %s", node)
	}
	h.rev, h.until = rev, now.Add(g.lease)
	return true, nil
}

// release gives a node up, with how far it was judged.
func (g *group) release(ctx context.Context, node string) error {
	h := g.mine[node]
	delete(g.mine, node)
	h.Owner = ""
	b, err := json.Marshal(h.claim)
	if err != nil {
		return err
	}
	_, err = g.kv.Update(ctx, g.nodeKey(node), b, h.rev)
	return errors.Wrapf(err, "give node %s up", node)
}

// leave gives everything up: the others go on at once.
func (g *group) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
	defer cancel()
	for _, node := range slices.Sorted(maps.Keys(g.mine)) {
		_ = g.release(ctx, node) // else its lease ends
	}
	_ = g.kv.Delete(ctx, g.memberKey(g.id))
	_ = g.watch.Stop()
}

// describe is what a person is told when the share changes.
func (g *group) describe() string {
	var parts []string
	for _, node := range slices.Sorted(maps.Keys(g.mine)) {
		h := g.mine[node]
		if h.Seq == 0 {
			parts = append(parts, node+" from its beginning")
		} else {
			parts = append(parts, fmt.Sprintf("%s from event %d", node, h.Seq+1))
		}
	}
	if len(parts) == 0 {
		parts = []string{"no node, for now"}
	}
	return fmt.Sprintf("auditor %s of group %s (%d in it): %s", g.id, g.name, g.alive(time.Now()), strings.Join(parts, ", "))
}
