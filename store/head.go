package store

import (
	"encoding/binary"
	"hash/crc32"
	"os"
	"path/filepath"

	"github.com/cockroachdb/errors"
)

// The head file repeats the last sequence and chain of each acknowledged
// commit beside the segments (store.md 6.3), so that an older root served by a
// damaged meta page is noticed. It is written after the commit and not synced:
// it may lag, it can never honestly be ahead. A log that was closed in order
// has "PDHC" instead, synced: its segments need no doubt at the next Open.
//
//	"PDH1", seq u64, chain u32, CRC-32C u32; little-endian
const headLen = 20

var headTable = crc32.MakeTable(crc32.Castagnoli)

type head struct {
	seq   uint64
	chain uint32
	clean bool // closed in order
}

func headPath(dir string) string { return filepath.Join(dir, "head") }

func encodeHead(h head) []byte {
	b := make([]byte, 0, headLen)
	if h.clean {
		b = append(b, "PDHC"...)
	} else {
		b = append(b, "PDH1"...)
	}
	b = binary.LittleEndian.AppendUint64(b, h.seq)
	b = binary.LittleEndian.AppendUint32(b, h.chain)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, headTable))
}

// readHead gives ok = false for a file that is missing, empty or torn: it says
// nothing then, which a crash may cause.
func readHead(dir string) (h head, ok bool, err error) {
	b, err := os.ReadFile(headPath(dir))
	if errors.Is(err, os.ErrNotExist) {
		return head{}, false, nil
	}
	if err != nil {
		return head{}, false, errors.Wrap(err, "read head file")
	}
	le := binary.LittleEndian
	if len(b) != headLen || (string(b[:4]) != "PDH1" && string(b[:4]) != "PDHC") || le.Uint32(b[16:]) != crc32.Checksum(b[:16], headTable) {
		return head{}, false, nil
	}
	return head{seq: le.Uint64(b[4:]), chain: le.Uint32(b[12:]), clean: b[3] == 'C'}, true, nil
}

func openHead(dir string) (*os.File, error) {
	f, err := os.OpenFile(headPath(dir), os.O_RDWR|os.O_CREATE, 0o644)
	return f, errors.Wrap(err, "open head file")
}

func writeHead(f *os.File, h head) error {
	_, err := f.WriteAt(encodeHead(h), 0)
	return errors.Wrap(err, "write head file")
}
