package store

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"os"
	"testing"
)

// FuzzTip: what is taken for a tip is written again as the same bytes, but for
// flags that this build does not know.
func FuzzTip(f *testing.F) {
	f.Add(tip{txid: 7, seq: 9, chain: 3, incarnation: 1}.encode())
	f.Add(tip{txid: 1 << 60, seq: 1, oneSync: true}.encode())
	f.Add([]byte("tip"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == tipLen { // past the checksum, too
			b = bytes.Clone(b)
			binary.BigEndian.PutUint32(b[32:], crc32.Checksum(b[:32], headTable))
		}
		v, err := decodeTip(b)
		if err != nil {
			if v != (tip{}) {
				t.Fatalf("half a tip: %+v", v)
			}
			return
		}
		again, err := decodeTip(v.encode())
		if err != nil || again != v {
			t.Fatalf("%+v is read as %+v, %v", v, again, err)
		}
	})
}

// FuzzSnapshotFile: a file is a snapshot of that record, whole, or damaged.
func FuzzSnapshotFile(f *testing.F) {
	const seq = 42
	good := binary.LittleEndian.AppendUint64([]byte(snapshotMagic), seq)
	good = binary.LittleEndian.AppendUint32(good, 7)
	good = binary.LittleEndian.AppendUint64(good, 5)
	good = append(good, "state"...)
	f.Add(good, uint64(seq))
	f.Add(good[:len(good)-1], uint64(seq))
	f.Add([]byte{}, uint64(1))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, b []byte, of uint64) {
		b = binary.LittleEndian.AppendUint32(bytes.Clone(b), crc32.Checksum(b, headTable))
		if err := os.WriteFile(snapshotPath(dir, of), b, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := readSnapshot(dir, of)
		if rerr := os.Remove(snapshotPath(dir, of)); rerr != nil {
			t.Fatal(rerr)
		}
		if err != nil {
			return
		}
		if s.Seq != of || !bytes.HasSuffix(b[:len(b)-4], s.Data) || len(s.Data) != len(b)-snapshotHead-4 {
			t.Fatalf("read %+v of %x", s, b)
		}
	})
}
