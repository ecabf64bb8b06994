package projector

// arena hands out the short lists that every Step returns, cut from longer
// pieces, so that a list of its own is not allocated for each. A list that was
// handed out is its receiver's alone, until rewind.
type arena[T any] struct {
	free  []T
	piece []T // with reuse: the one that free is the rest of
	lost  int // with reuse: elements of pieces before it
	reuse bool
}

const (
	arenaPiece = 256     // elements allocated at once
	arenaList  = 16      // elements that a list has room for without moving
	arenaMost  = 1 << 14 // elements that are kept to be used again
)

// open gives an empty list to append to; close has to follow.
func (a *arena[T]) open() []T {
	if len(a.free) < arenaList {
		a.lost += len(a.piece)
		a.free = make([]T, arenaPiece)
		if a.reuse {
			a.piece = a.free
		}
	}
	return a.free[:0:len(a.free)]
}

// close takes the list that open gave, with what was appended, and gives it to
// keep; nil for an empty one.
func (a *arena[T]) close(list []T) []T {
	switch n := len(list); {
	case n == 0:
		return nil
	case n > len(a.free): // it has outgrown the piece; what it left there goes with the piece
		a.free = nil
		return list
	default:
		a.free = a.free[n:]
		return list[:n:n]
	}
}

// rewind makes the lists that were handed out free to be used again, in a piece
// that has room for as many elements as were needed since the last time. keep: the
// lists stay with those who hold them.
func (a *arena[T]) rewind(keep bool) {
	switch need := min(a.lost+len(a.piece), arenaMost); {
	case keep:
		a.piece, a.free = nil, nil
	case need > len(a.piece):
		a.piece = make([]T, need)
		a.free = a.piece
	default:
		a.free = a.piece
	}
	a.lost = 0
}
