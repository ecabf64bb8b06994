package crash

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// disk is one directory on a disk with a write cache: what was synced stays, of
// the rest any part may be there after a power loss. Names are journaled: they
// survive in order.
type disk struct {
	root     string
	lazy     bool // the control: syncs are ignored
	live     map[string]*inode
	durable  map[string]*inode
	names    []*nameOp // not synced yet
	fds      map[int]*inode
	pos      map[int]int64
	nextID   int
	acked    uint64
	begun    uint64 // highest sequence that the writer says it appended
	syncing  map[*call][]*write
	renaming map[*call]int
	pending  map[*call]*write
}

type inode struct {
	id      int
	version int // of durable
	durable []byte
	writes  []*write
	settled string // file of the cache that holds durable
}

// write is a write at off, or with nil data a truncation to off.
type write struct {
	off  int64
	data []byte
	done bool
}

type nameOp struct {
	set, del string // a rename has both
	ino      *inode
}

func newDisk(root string, lazy bool) *disk {
	return &disk{root: root + "/", lazy: lazy, live: map[string]*inode{}, durable: map[string]*inode{}, fds: map[int]*inode{},
		pos: map[int]int64{}, syncing: map[*call][]*write{}, renaming: map[*call]int{}, pending: map[*call]*write{}}
}

// load begins with the files that lie in dir, all of them durable.
func (d *disk) load(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		d.nextID++
		ino := &inode{id: d.nextID, durable: b}
		d.live[e.Name()], d.durable[e.Name()] = ino, ino
	}
	return nil
}

func (w *write) apply(b []byte, sector func() bool) []byte {
	if w.data == nil {
		if w.off <= int64(len(b)) {
			return b[:w.off]
		}
		return append(b, make([]byte, w.off-int64(len(b)))...)
	}
	if end := w.off + int64(len(w.data)); end > int64(len(b)) {
		b = append(b, make([]byte, end-int64(len(b)))...)
	}
	const size = 512
	for from := int64(0); from < int64(len(w.data)); {
		to := min(int64(len(w.data)), (w.off+from)/size*size+size-w.off)
		if sector == nil || sector() {
			copy(b[w.off+from:], w.data[from:to])
		}
		from = to
	}
	return b
}

func (d *disk) name(path string) (string, bool) { return strings.CutPrefix(path, d.root) }

// step replays one call. changed says that there is something new to cut at.
func (d *disk) step(c *call) (changed bool, err error) {
	if c.end && c.ret < 0 {
		return false, nil
	}
	switch c.name {
	case "openat":
		if !c.end {
			return false, nil
		}
		return d.open(c)
	case "renameat", "renameat2":
		if !c.end {
			return false, nil
		}
		from, err := text(c.args[1])
		if err != nil {
			return false, err
		}
		to, err := text(c.args[3])
		if err != nil {
			return false, err
		}
		a, ok1 := d.name(string(from))
		b, ok2 := d.name(string(to))
		if !ok1 || !ok2 {
			return false, nil
		}
		ino := d.live[a]
		delete(d.live, a)
		d.live[b] = ino
		d.names = append(d.names, &nameOp{set: b, del: a, ino: ino})
		return true, nil
	case "unlinkat":
		if !c.end {
			return false, nil
		}
		path, err := text(c.args[1])
		if err != nil {
			return false, err
		}
		if a, ok := d.name(string(path)); ok {
			delete(d.live, a)
			d.names = append(d.names, &nameOp{del: a})
			return true, nil
		}
		return false, nil
	case "mkdirat":
		return false, nil
	}
	fd, path, err := fdPath(c.args[0])
	if err != nil {
		return false, err
	}
	if c.name == "write" && fd == 1 {
		return false, d.said(c)
	}
	if path+"/" == d.root {
		return true, d.syncDir(c)
	}
	ino := d.fds[fd]
	if _, ok := d.name(path); !ok || ino == nil {
		return false, nil
	}
	return d.file(c, fd, ino)
}

func (d *disk) open(c *call) (bool, error) {
	fd := int(c.ret)
	delete(d.fds, fd)
	path, err := text(c.args[1])
	if err != nil {
		return false, err
	}
	name, ok := d.name(string(path))
	if !ok {
		return false, nil
	}
	ino := d.live[name]
	made := false
	if ino == nil {
		d.nextID++
		ino = &inode{id: d.nextID}
		d.live[name] = ino
		d.names = append(d.names, &nameOp{set: name, ino: ino})
		made = true
	} else if strings.Contains(c.args[2], "O_TRUNC") {
		ino.writes = append(ino.writes, &write{done: true})
		made = true
	}
	d.fds[fd], d.pos[fd] = ino, 0
	return made, nil
}

func (d *disk) file(c *call, fd int, ino *inode) (bool, error) {
	switch c.name {
	case "write", "pwrite64", "ftruncate":
		if c.begin {
			w := &write{}
			var err error
			switch c.name {
			case "ftruncate":
				w.off, err = strconv.ParseInt(c.args[1], 10, 64)
			case "pwrite64":
				if w.data, err = text(c.args[1]); err == nil {
					w.off, err = strconv.ParseInt(c.args[3], 10, 64)
				}
			default:
				w.data, err = text(c.args[1])
				w.off = d.pos[fd]
				d.pos[fd] += int64(len(w.data))
			}
			if err != nil {
				return false, err
			}
			ino.writes = append(ino.writes, w)
			d.pending[c] = w
		}
		if c.end {
			of := c
			if c.of != nil {
				of = c.of
			}
			w := d.pending[of]
			if w.data != nil && c.ret != int64(len(w.data)) {
				return false, fmt.Errorf("short %s: %d of %d", c.name, c.ret, len(w.data))
			}
			w.done = true
		}
		return c.begin, nil
	case "fsync", "fdatasync":
		if c.begin {
			var covered []*write
			for _, w := range ino.writes {
				if w.done {
					covered = append(covered, w)
				}
			}
			d.syncing[c] = covered
		}
		if c.end && !d.lazy {
			of := c
			if c.of != nil {
				of = c.of
			}
			for _, w := range d.syncing[of] {
				ino.durable = w.apply(ino.durable, nil)
				ino.version++
				ino.writes = slices.DeleteFunc(ino.writes, func(o *write) bool { return o == w })
			}
		}
		return c.begin, nil // cut where the sync is under way
	}
	return false, nil
}

func (d *disk) syncDir(c *call) error {
	if c.name != "fsync" {
		return nil
	}
	if c.begin {
		d.renaming[c] = len(d.names)
	}
	if c.end && !d.lazy {
		of := c
		if c.of != nil {
			of = c.of
		}
		n := min(d.renaming[of], len(d.names))
		applyNames(d.durable, d.names[:n])
		d.names = d.names[n:]
	}
	return nil
}

func applyNames(m map[string]*inode, ops []*nameOp) {
	for _, o := range ops {
		if o.del != "" {
			delete(m, o.del)
		}
		if o.set != "" {
			m[o.set] = o.ino
		}
	}
}

// said follows what the writer tells: "ack N" once it is told that N is
// durable, "app N" before it appends N.
func (d *disk) said(c *call) error {
	if !c.begin {
		return nil
	}
	b, err := text(c.args[1])
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(b)) {
		word, num, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.ParseUint(num, 10, 64)
		if err != nil {
			return fmt.Errorf("the writer says %q", line)
		}
		if word == "ack" {
			d.acked = n
		} else {
			d.begun = n
		}
	}
	return nil
}

// pages are the writes in pieces that lie in one page each, as the kernel writes
// them back: of one call for many pages any may be lost.
func pages(writes []*write) (out []*write) {
	const size = 4096
	for _, w := range writes {
		if w.data == nil {
			out = append(out, w)
			continue
		}
		for from := int64(0); from < int64(len(w.data)); {
			to := min(int64(len(w.data)), (w.off+from)/size*size+size-w.off)
			out = append(out, &write{off: w.off + from, data: w.data[from:to], done: w.done})
			from = to
		}
	}
	return out
}

// image writes what a power loss now may leave. cache holds files whose
// content is settled, for hard links; "" for an image that will be written to.
func (d *disk) image(rng *rand.Rand, dir, cache string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	mode := rng.IntN(7) // 0: nothing of the rest, 1: all of it, else some
	keep := len(d.names)
	switch mode {
	case 0:
		keep = 0
	case 1:
	default:
		keep = rng.IntN(len(d.names) + 1)
	}
	files := maps.Clone(d.durable)
	applyNames(files, d.names[:keep])
	names := slices.Sorted(maps.Keys(files)) // in order: a seed gives the same image again
	for _, name := range names {
		ino, path := files[name], filepath.Join(dir, name)
		if name == "LOCK" || name == "next.tmp" { // no reader looks at them
			continue
		}
		if cache != "" && (len(ino.writes) == 0 || mode == 0) {
			settled := filepath.Join(cache, fmt.Sprintf("%d-%d", ino.id, ino.version))
			if _, err := os.Stat(settled); err != nil {
				if err := os.WriteFile(settled, ino.durable, 0o644); err != nil {
					return err
				}
				if ino.settled != "" && ino.settled != settled { // images that are being checked keep their links
					if err := os.Remove(ino.settled); err != nil {
						return err
					}
				}
				ino.settled = settled
			}
			if err := os.Link(settled, path); err != nil {
				return err
			}
			continue
		}
		b := slices.Clone(ino.durable)
		writes := pages(ino.writes)
		prefix, one := rng.IntN(len(writes)+1), rng.IntN(max(len(writes), 1))
		for i, w := range writes {
			switch mode {
			case 0:
			case 1:
				b = w.apply(b, nil)
			case 2: // in order
				if i < prefix {
					b = w.apply(b, nil)
				}
			case 3: // any of them, page by page
				if rng.IntN(2) == 0 {
					b = w.apply(b, nil)
				}
			case 4: // any sector of them
				b = w.apply(b, func() bool { return rng.IntN(3) > 0 })
			case 5: // the last one alone: a meta page without what it points to
				if i == len(writes)-1 {
					b = w.apply(b, nil)
				}
			case 6: // all but one
				if i != one {
					b = w.apply(b, nil)
				}
			}
		}
		if err := os.WriteFile(path, b, 0o644); err != nil {
			return err
		}
	}
	return nil
}
