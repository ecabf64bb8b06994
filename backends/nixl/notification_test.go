package nixl_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pdlog/pdlog/backends"
	"github.com/pdlog/pdlog/backends/nixl"
)

// The texts are those of wire.md 1.10 and 7.17, and others of the same forms.
var notifications = map[string]backends.Notification{
	"4242_kv_0_0_1":          {Room: 4242, What: backends.NotifyKV, Source: 1, Parts: 1},
	"4242_kv_3_1_1":          {Room: 4242, What: backends.NotifyKV, Chunk: 3, Last: true, Source: 1, Parts: 1},
	"4242_kv_3_1_1_part_0_2": {Room: 4242, What: backends.NotifyKV, Chunk: 3, Last: true, Source: 1, Parts: 2},
	"4242_kv_3_1_1_part_1_2": {Room: 4242, What: backends.NotifyKV, Chunk: 3, Last: true, Source: 1, Part: 1, Parts: 2},
	"4242_aux":               {Room: 4242, What: backends.NotifyAux},
	"4242_aux_nokv_1_3":      {Room: 4242, What: backends.NotifyAuxNoKV, Source: 1, Expected: 3},
	"4242_state_1":           {Room: 4242, What: backends.NotifyState, Source: 1},
	"4242_stg_2_0_1_2_8_4_peer_with_underscores": {
		Room: 4242, What: backends.NotifyStaging, Chunk: 2, Source: 1, ChunkIdx: 2, PageStart: 8, NumPages: 4, Agent: "peer_with_underscores",
	},
	"9223372036854775807_kv_2147483647_1_2147483647_part_255_256": {
		Room: 1<<63 - 1, What: backends.NotifyKV, Chunk: 1<<31 - 1, Last: true, Source: 1<<31 - 1, Part: 255, Parts: 256,
	},
	"0_aux": {What: backends.NotifyAux},
}

func TestNotificationsAreReadAndWritten(t *testing.T) {
	var d nixl.Dialect
	for text, want := range notifications {
		got, err := d.ParseNotification([]byte(text))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", text, diff)
		}
		back, err := d.FormatNotification(want)
		if want.Parts == 1 && strings.Contains(text, "part") {
			continue
		}
		if err != nil || back != text {
			t.Errorf("%s is written as %q, error %v", text, back, err)
		}
	}
}

func TestBadNotificationsAreRefused(t *testing.T) {
	var d nixl.Dialect
	for _, text := range []string{
		"", "_", "4242", "4242_", "_aux", "x_aux", "-1_aux", "04242_aux", "9223372036854775808_aux", "4242_AUX", " 4242_aux", "4242_aux_",
		"4242_kv", "4242_kv_x_1_1", "4242_kv_0_2_1", "4242_kv_0_true_1", "4242_kv_0_0", "4242_kv_0_0_", "4242_kv_+1_0_1", "4242_kv_0_0_-1", "4242_kv_00_0_1",
		"4242_kv_2147483648_0_1", "4242_kv_0_0_1_x", "4242_kv_0_0_1_part", "4242_kv_0_0_1_part_0", "4242_kv_0_0_1_part_5_2", "4242_kv_0_0_1_part_2_2",
		"4242_kv_0_0_1_part_0_0", "4242_kv_0_0_1_part_0_257", "4242_kv_0_0_1_part_0_2_x", "4242_kv_0_0_1_part_0_2_", "4242_kv_0_0_1_piece_0_2",
		"4242_stg_2_0_1_2_8_4", "4242_stg_2_0_1_2_8_4_", "4242_stg_2_0_1_2_8_x_agent", "4242_stg_2_0_1_2_8_4_two words",
		"4242_aux_nokv", "4242_aux_nokv_1", "4242_aux_nokv_1_3_5", "4242_aux_kv_1_3", "4242_state", "4242_state_1_2", "4242_state_x", "4242_nokv_1_3",
	} {
		if n, err := d.ParseNotification([]byte(text)); err == nil {
			t.Errorf("%q is read as %+v", text, n)
		}
	}
	for _, n := range []backends.Notification{
		{},
		{Room: 1 << 63, What: backends.NotifyAux},
		{Room: 1, What: backends.NotifyKV, Chunk: -1, Parts: 1},
		{Room: 1, What: backends.NotifyKV, Part: 2, Parts: 2},
		{Room: 1, What: backends.NotifyStaging, Agent: ""},
	} {
		if s, err := d.FormatNotification(n); err == nil {
			t.Errorf("%+v is written as %q", n, s)
		}
	}
}

// FuzzNotification: any text is read or refused, and what is read is written as
// a text that reads the same.
func FuzzNotification(f *testing.F) {
	for text := range notifications {
		f.Add([]byte(text))
	}
	f.Add([]byte("4242_kv_0_0_1_part_5_2"))
	f.Fuzz(func(t *testing.T, text []byte) {
		var d nixl.Dialect
		n, err := d.ParseNotification(text)
		if err != nil {
			return
		}
		s, err := d.FormatNotification(n)
		if err != nil {
			t.Fatalf("%q is read as %+v, which cannot be written: %v", text, n, err)
		}
		if again, err := d.ParseNotification([]byte(s)); err != nil || again != n {
			t.Fatalf("%q is read as %+v, %q as %+v (%v)", text, n, s, again, err)
		}
	})
}
