package cli

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/pdlog/pdlog/node/enginepb"
)

// still is a node that stands still.
type still struct {
	enginepb.EngineClient
	status *enginepb.StatusResponse
	rooms  []*enginepb.RoomView
}

func (s still) Status(context.Context, *connect.Request[enginepb.StatusRequest]) (*connect.Response[enginepb.StatusResponse], error) {
	return connect.NewResponse(s.status), nil
}

func (s still) Rooms(context.Context, *connect.Request[enginepb.RoomsRequest]) (*connect.Response[enginepb.RoomsResponse], error) {
	return connect.NewResponse(&enginepb.RoomsResponse{Rooms: s.rooms}), nil
}

func (s still) Peers(context.Context, *connect.Request[enginepb.PeersRequest]) (*connect.Response[enginepb.PeersResponse], error) {
	return connect.NewResponse(&enginepb.PeersResponse{Peers: []*enginepb.PeerView{{Node: "p0", State: "ok", Fence: "reader_stopped"}}}), nil
}

func TestTopShowsWhatNeedsAttentionFirst(t *testing.T) {
	n := still{status: &enginepb.StatusResponse{
		Node: "d0", Role: "decode", Ready: true, Boot: 1, LastSeq: 100, DurableSeq: 98, Rooms: 42,
		Pages: 300, PagesFree: 149, PagesOwned: 150, PagesHeld: 1,
	}}
	for i := range uint64(40) {
		n.rooms = append(n.rooms, &enginepb.RoomView{Room: i + 1, RoomSeq: i + 1, State: "transferring"})
	}
	n.rooms = append(n.rooms,
		&enginepb.RoomView{Room: 51, RoomSeq: 51, State: "held", Missing: []string{"p0/1"}, Pages: []uint32{7}},
		&enginepb.RoomView{Room: 52, RoomSeq: 52, State: "quarantined", Cause: "client"})
	first, err := takeTop(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	n.status = &enginepb.StatusResponse{Node: "d0", Role: "decode", Boot: 1, LastSeq: 400, DurableSeq: 400, NotReady: "memory is not registered", Pages: 300, PagesFree: 300}
	second, err := takeTop(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	second.at = first.at.Add(2 * time.Second)
	var a, b bytes.Buffer
	if err := first.write(&a, nil); err != nil {
		t.Fatal(err)
	}
	if err := second.write(&b, first); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"ready", "2 not on disk", "- events/s", "[###############h..............]", "1 held, 0 quarantined", "rooms: 42: 1 quarantined, 1 held, 40 transferring", "p0/1", "reader_stopped",
	} {
		if !strings.Contains(a.String(), want) {
			t.Errorf("%q is not in\n%s", want, a.String())
		}
	}
	if q, h := strings.Index(a.String(), "\n52 "), strings.Index(a.String(), "\n51 "); q < 0 || h < q {
		t.Errorf("the quarantined room is at %d, the held one at %d", q, h)
	}
	if rows := strings.Count(a.String(), "  transferring  "); rows != topRooms-2 {
		t.Errorf("%d rooms in transfer are shown", rows)
	}
	for _, want := range []string{"150 events/s", "not ready: memory is not registered", "[..............................]"} { // 300 events in 2 s
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in\n%s", want, b.String())
		}
	}
}
