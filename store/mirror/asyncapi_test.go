package mirror

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/store"
)

var update = flag.Bool("update", false, "write docs/asyncapi.yaml")

var asyncapiPath = filepath.Join("..", "..", "docs", "asyncapi.yaml")

// object is a YAML map; its keys come out sorted.
type object = map[string]any

// milestones are the payloads that isMilestone lets through, by type name.
func milestones() map[string]protoreflect.MessageDescriptor {
	out := map[string]protoreflect.MessageDescriptor{}
	fields := (&events.Event{}).ProtoReflect().Descriptor().Oneofs().ByName("payload").Fields()
	for i := range fields.Len() {
		e := &events.Event{}
		e.ProtoReflect().Set(fields.Get(i), e.ProtoReflect().NewField(fields.Get(i)))
		if IsMilestone(e) {
			out[e.TypeName()] = fields.Get(i).Message()
		}
	}
	return out
}

func words(ed protoreflect.EnumDescriptor) []string {
	var out []string
	for i := range ed.Values().Len() {
		out = append(out, events.EnumWord(ed, ed.Values().Get(i).Number()))
	}
	return out
}

// schemaOf is the JSON schema of a message in the form of events.AppendJSON.
func schemaOf(m protoreflect.MessageDescriptor) object {
	props, required := object{}, []string{}
	for i := range m.Fields().Len() {
		fd := m.Fields().Get(i)
		props[string(fd.Name())] = schemaOfField(fd)
		if !fd.HasPresence() {
			required = append(required, string(fd.Name()))
		}
	}
	out := object{"type": "object", "properties": props}
	if len(required) > 0 {
		out["required"] = required
	}
	return out
}

func schemaOfField(fd protoreflect.FieldDescriptor) object {
	var s object
	switch {
	case fd.Kind() == protoreflect.EnumKind:
		s = object{"type": "string", "enum": words(fd.Enum())}
	case fd.Kind() == protoreflect.MessageKind:
		s = schemaOf(fd.Message())
	case fd.Kind() == protoreflect.BoolKind:
		s = object{"type": "boolean"}
	case fd.Kind() == protoreflect.StringKind:
		s = object{"type": "string"}
	case fd.Kind() == protoreflect.BytesKind, fd.Kind() == protoreflect.Fixed64Kind:
		s = object{"type": "string", "pattern": "^[0-9a-f]*$"}
	default:
		s = object{"type": "integer"}
	}
	if fd.IsList() {
		s = object{"type": "array", "items": s}
	}
	return s
}

func envelopeSchema() object {
	number, text := object{"type": "integer"}, object{"type": "string"}
	hex := func(digits int) object {
		return object{"type": "string", "pattern": fmt.Sprintf("^[0-9a-f]{%d}$", digits)}
	}
	return object{
		"type": "object",
		"properties": object{
			"seq": number, "hlc": number, "time": object{"type": "string", "format": "date-time"}, "node": text, "boot": hex(16), "incarnation": number,
			"room":     object{"type": "string", "pattern": "^[0-9]+$", "description": "a string: room numbers have 63 bits and JavaScript rounds such numbers"},
			"room_seq": number, "rank": text, "cause_node": text, "cause_seq": number, "prev_hash": hex(8), "time_offset_ms": number, "type": text,
		},
		"required": []string{"seq", "hlc", "time", "node", "boot", "incarnation", "room", "room_seq", "rank", "prev_hash", "time_offset_ms", "type"},
	}
}

func headersSchema(h nats.Header) object {
	props := object{}
	for name := range h {
		props[name] = object{"type": "string"}
	}
	props["Nats-Msg-Id"] = object{"type": "string", "description": "of this message; a server drops a second one within its window"}
	return object{"type": "object", "properties": props, "required": slices.Sorted(maps.Keys(props))}
}

func logHeaders() nats.Header { return logHead{first: 1, last: 1}.header() }

func auditHeaders() nats.Header {
	return auditMessage("c", store.LogID{}, &events.Event{Node: "n", Seq: 1}).Header
}

func nodeParameters(more object) object {
	p := object{
		"cluster": object{"description": "nats.cluster of the nodes; a byte that is no letter, digit, - or _ is =XX"},
		"node":    object{"description": "the node's name, in the same spelling"},
	}
	maps.Copy(p, more)
	return p
}

func asyncapi() object {
	types := milestones()
	names := slices.Sorted(maps.Keys(types))
	messages, refs := object{
		"Log": object{
			"summary": "frames of a node's log, one behind the other (log-format.md), up to 512 KiB of them", "contentType": ContentType,
			"headers": headersSchema(logHeaders()), "payload": object{"type": "string", "format": "binary"},
		},
	}, object{}
	for _, name := range names {
		payload := schemaOf(types[name])
		messages[name] = object{
			"name": name, "contentType": AuditContentType, "headers": object{"$ref": "#/components/schemas/AuditHeaders"},
			"payload": object{"allOf": []any{object{"$ref": "#/components/schemas/Envelope"}, object{"properties": object{"type": object{"const": name}}}, payload}},
		}
		refs[name] = object{"$ref": "#/components/messages/" + name}
	}
	return object{
		"asyncapi": "3.0.0",
		"info": object{
			"title": "pdlog on NATS", "version": "1.0.0", "license": object{"name": "Apache-2.0"},
			"description": "What nodes publish to JetStream: their logs (stream " + StreamLog + ") and milestones (stream " + StreamAudit +
				"). Names are stable, fields only grow. Nodes read back the last messages of their own subjects and subscribe to nothing.",
		},
		"defaultContentType": AuditContentType,
		"servers": object{"nats": object{
			"host": "nats.example.net:4222", "protocol": "nats", "description": "nats.url, or the node's own embedded server",
		}},
		"channels": object{
			"log": object{
				"address": prefixLog + "{cluster}.{node}", "description": "stream " + StreamLog, "parameters": nodeParameters(nil),
				"messages": object{"Log": object{"$ref": "#/components/messages/Log"}},
			},
			"audit": object{
				"address": prefixAudit + "{cluster}.{node}.{type}", "description": "stream " + StreamAudit + "; a CloudEvent in binary mode",
				"parameters": nodeParameters(object{"type": object{"enum": names, "description": "the milestone"}}), "messages": refs,
			},
		},
		"operations": object{
			"publishLog":   object{"action": "send", "channel": object{"$ref": "#/channels/log"}, "summary": "each durable record once, in the log's order"},
			"publishAudit": object{"action": "send", "channel": object{"$ref": "#/channels/audit"}, "summary": "each milestone once, behind its record on the log's stream"},
		},
		"components": object{
			"messages": messages,
			"schemas":  object{"Envelope": envelopeSchema(), "AuditHeaders": headersSchema(auditHeaders())},
		},
	}
}

func TestAsyncAPIIsCurrent(t *testing.T) {
	var b bytes.Buffer
	b.WriteString("# Generated from the code by `go test ./store/mirror -run TestAsyncAPI -update`; a test holds it current.\n")
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(asyncapi()); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(asyncapiPath, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(asyncapiPath)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, b.Bytes()) {
		t.Fatal("docs/asyncapi.yaml is not current: go test ./store/mirror -run TestAsyncAPI -update")
	}
}

// What the code makes is what the document says: subjects, headers, and each
// key of the JSON with its type; and the document names nothing else.
func TestMessagesAreThoseOfTheDocument(t *testing.T) {
	text, err := os.ReadFile(asyncapiPath)
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Channels map[string]struct {
			Address  string
			Messages map[string]any
		}
		Components struct {
			Messages map[string]struct {
				Payload struct {
					AllOf []yaml.Node `yaml:"allOf"`
				}
			}
			Schemas map[string]struct {
				Properties map[string]struct{ Type string }
				Required   []string
			}
		}
	}
	if err := yaml.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	address := func(channel string) *regexp.Regexp {
		pattern := regexp.QuoteMeta(doc.Channels[channel].Address)
		return regexp.MustCompile("^" + regexp.MustCompile(`\\\{\w+\\\}`).ReplaceAllString(pattern, `[A-Za-z0-9_=-]+`) + "$")
	}
	if s := SubjectLog("prod", "host.7"); !address("log").MatchString(s) {
		t.Errorf("%s is not of the log's channel", s)
	}
	if len(doc.Channels) != 2 || len(doc.Channels["audit"].Messages) != len(milestones()) || len(doc.Components.Messages) != len(milestones())+1 {
		t.Errorf("%d channels, %d milestones, %d messages", len(doc.Channels), len(doc.Channels["audit"].Messages), len(doc.Components.Messages))
	}
	envelope := doc.Components.Schemas["Envelope"]
	fields := (&events.Event{}).ProtoReflect().Descriptor().Oneofs().ByName("payload").Fields()
	for i := range fields.Len() {
		e := &events.Event{Seq: 7, Hlc: 1 << 40, Node: "d.0", Boot: 1, Incarnation: 1, Room: 5826505748863926392, RoomSeq: 3, Rank: "p0/1", Cause: &events.Cause{Node: "p0", Seq: 2}}
		e.ProtoReflect().Set(fields.Get(i), e.ProtoReflect().NewField(fields.Get(i)))
		if !IsMilestone(e) {
			continue
		}
		msg := auditMessage("prod", store.LogID{}, e)
		if !address("audit").MatchString(msg.Subject) || !strings.HasSuffix(msg.Subject, "."+e.TypeName()) {
			t.Errorf("%s is not of the audit channel", msg.Subject)
		}
		var body map[string]any
		if err := json.Unmarshal(msg.Data, &body); err != nil {
			t.Fatal(err)
		}
		var own struct{ Properties map[string]any }
		parts := doc.Components.Messages[e.TypeName()].Payload.AllOf
		if len(parts) != 3 {
			t.Fatalf("%s is not in the document", e.TypeName())
		}
		if err := parts[2].Decode(&own); err != nil {
			t.Fatal(err)
		}
		for key, v := range body {
			kind, inEnvelope := envelope.Properties[key]
			if _, ok := own.Properties[key]; !ok && !inEnvelope {
				t.Errorf("%s: the document does not know %s", e.TypeName(), key)
			}
			if _, isText := v.(string); inEnvelope && isText != (kind.Type == "string") {
				t.Errorf("%s: %s is %v, the document says %s", e.TypeName(), key, v, kind.Type)
			}
		}
		for _, key := range envelope.Required {
			if _, ok := body[key]; !ok {
				t.Errorf("%s has no %s", e.TypeName(), key)
			}
		}
	}
}
