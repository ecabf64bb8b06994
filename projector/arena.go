package projector

// arena hands out the short lists that every Step returns, cut from longer
// pieces, so that a list of its own is not allocated for each. A list that was
// handed out is its receiver's alone.
type arena[T any] struct{ free []T }

const (
	arenaPiece = 256 // elements allocated at once
	arenaList  = 16  // elements that a list has room for without moving
)

// open gives an empty list to append to; close has to follow.
func (a *arena[T]) open() []T {
	if len(a.free) < arenaList {
		a.free = make([]T, arenaPiece)
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
