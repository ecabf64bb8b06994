package store

import "os"

const (
	// windowBytes read at a time; four of them are small enough that hundreds of
	// logs can be read side by side.
	windowBytes = 64 << 10
	windowCount = 4
)

// windows reads a file through a few aligned windows that are used again and
// again. A log of small commits has its pages in order only on the whole: bbolt
// puts a page where one before was given up, some pages back, so the walk goes to
// and fro between windows.
type windows struct {
	at   [windowCount]int64 // offset + 1, 0 = unused
	buf  [windowCount][]byte
	next int    // the one to be used anew
	wide []byte // what crosses the end of a window

	filled int64 // bytes read into windows
}

// read gives n bytes at off, which the file of size bytes has. They are good
// until the next read.
func (w *windows) read(f *os.File, size, off, n int64) ([]byte, error) {
	start := off &^ (windowBytes - 1)
	if off+n > start+windowBytes {
		if int64(cap(w.wide)) < n {
			w.wide = make([]byte, n)
		}
		b := w.wide[:n:n]
		_, err := f.ReadAt(b, off)
		return b, err
	}
	b, ok := w.find(start)
	if !ok {
		var err error
		if b, err = w.fill(f, start, min(windowBytes, size-start)); err != nil {
			return nil, err
		}
	}
	off -= start
	return b[off : off+n : off+n], nil
}

func (w *windows) find(start int64) ([]byte, bool) {
	for i, at := range w.at {
		if at == start+1 {
			return w.buf[i], true
		}
	}
	return nil, false
}

func (w *windows) fill(f *os.File, start, n int64) ([]byte, error) {
	i := w.next
	w.next = (i + 1) % windowCount
	if w.buf[i] == nil {
		w.buf[i] = make([]byte, windowBytes)
	}
	w.at[i], w.buf[i] = 0, w.buf[i][:n]
	if _, err := f.ReadAt(w.buf[i], start); err != nil {
		return nil, err
	}
	w.at[i] = start + 1
	w.filled += n
	return w.buf[i], nil
}
