package cli

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/cockroachdb/errors"
)

func TestALoggedErrorIsOneLine(t *testing.T) {
	t.Parallel()
	for format, want := range map[string]string{
		"text": `err="publish d0/7: deadline exceeded"`,
		"json": `"err":"publish d0/7: deadline exceeded"`,
	} {
		var out bytes.Buffer
		log := newLogger(Sys{Stderr: &out}, format, slog.LevelInfo)
		log.Warn("mirror", "err", errors.Wrap(errors.New("deadline exceeded"), "publish d0/7"))
		if have := out.String(); !strings.Contains(have, want) || strings.Contains(have, "stack trace") {
			t.Errorf("%s: %s", format, have)
		}
	}
}
