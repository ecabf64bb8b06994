package replay

import "time"

// Time is a time in cli.md's JSON form: RFC 3339, UTC, nanoseconds always.
type Time struct{ time.Time }

const timeForm = "2006-01-02T15:04:05.000000000Z07:00"

// MarshalJSON implements json.Marshaler.
func (t Time) MarshalJSON() ([]byte, error) { return t.UTC().AppendFormat(nil, `"`+timeForm+`"`), nil }
