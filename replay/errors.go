package replay

import "github.com/cockroachdb/errors"

var (
	// ErrUnavailable: a source could not be read at all: in use, unreachable, no
	// permission (cli.md: exit 3).
	ErrUnavailable = errors.New("source is not available")
	// ErrBadSource: a source is not what it should be, or holds no log (exit 2).
	ErrBadSource = errors.New("bad source")
	// ErrDamaged: a log does not verify (exit 1).
	ErrDamaged = errors.New("log is damaged")
	// ErrConflict: two copies of one log hold different events under one
	// sequence (cases.md C-76; exit 1).
	ErrConflict = errors.New("copies of a log differ")
)

// WithKind makes err an instance of the sentinel kind and keeps its own words. It
// works with errors.Is of any package. A nil err stays nil.
func WithKind(err, kind error) error { return mark(err, kind) }

// mark makes err an instance of the sentinel kind and keeps its own words. It
// works with errors.Is of any package.
func mark(err, kind error) error {
	if err == nil {
		return nil
	}
	return &marked{err: err, kind: kind}
}

type marked struct{ err, kind error }

func (m *marked) Error() string        { return m.err.Error() }
func (m *marked) Unwrap() error        { return m.err }
func (m *marked) Is(target error) bool { return target == m.kind } //nolint:errorlint // identity is meant
