package node

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// sources are where a rule comes from; the reference is read without them.
var sources = regexp.MustCompile(` \((wire|http)\.md[^)]*\)| \(F\d+\)`)

var update = flag.Bool("update", false, "write docs/configuration.md")

// comments are what the source says about the fields of the configuration's
// structs, by "Struct.Field".
func comments(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			ts, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if st, ok := ts.Type.(*ast.StructType); ok && strings.HasSuffix(ts.Name.Name, "Config") {
				for _, field := range st.Fields.List {
					text := field.Comment.Text()
					if text == "" { // the comment above may be that of several fields
						text = field.Doc.Text()
					}
					for _, name := range field.Names {
						out[ts.Name.Name+"."+name.Name] = sources.ReplaceAllString(strings.Join(strings.Fields(text), " "), "")
					}
				}
			}
			return true
		})
	}
	return out
}

// configRow is one key of the reference.
type configRow struct{ key, kind, def, text string }

// configRows walks the struct: the order is that of the source.
func configRows(t *testing.T, v reflect.Value, prefix string, said map[string]string) (rows []configRow) {
	t.Helper()
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if !f.IsExported() {
			continue
		}
		key := prefix + f.Tag.Get("koanf")
		if f.Type.Kind() == reflect.Struct {
			rows = append(rows, configRows(t, v.Field(i), key+".", said)...)
			continue
		}
		text := said[v.Type().Name()+"."+f.Name]
		if text == "" {
			t.Errorf("%s.%s says nothing of itself: give it a comment", v.Type().Name(), f.Name)
		}
		kind := map[reflect.Kind]string{
			reflect.String: "text", reflect.Int: "number", reflect.Int64: "number", reflect.Bool: "true, false", reflect.Slice: "list",
		}[f.Type.Kind()]
		if f.Type == reflect.TypeFor[time.Duration]() {
			kind = "duration"
		}
		if w := words[key]; w != nil {
			kind = strings.Join(w, ", ")
		}
		rows = append(rows, configRow{key: key, kind: kind, def: show(v.Field(i).Interface()), text: text})
	}
	return rows
}

func configReference(t *testing.T) []byte {
	t.Helper()
	rows := configRows(t, reflect.ValueOf(DefaultConfig()), "", comments(t))
	var keys []string
	for _, r := range rows {
		keys = append(keys, r.key)
	}
	slices.Sort(keys)
	if !slices.Equal(keys, Keys()) {
		t.Fatalf("the reference has the keys %v, the node %v", keys, Keys())
	}
	var b bytes.Buffer
	b.WriteString(`# Configuration reference

Generated from the source by ` + "`go test ./node -run TestConfigurationReference -update`" + `; a test holds it current.

Values come from the YAML file of ` + "`pdnode run --config FILE`" + `, from the environment, and from flags; each beats the one before it. The key
` + "`nats.lag_alarm`" + ` is nested in the file, the variable ` + "`" + EnvName("nats.lag_alarm") + "`" + `, and the flag ` + "`--" + FlagName("nats.lag_alarm") + "`" + `. An unknown key, variable or
value is refused in one line that names the key, the file and the line. ` + "`pdnode run --validate`" + ` checks and ends; ` + "`pdnode config print`" + ` shows what counts and
where it comes from. Durations are written as ` + "`1m30s`" + `; lists as YAML lists, or with commas.

## Changed while it runs

SIGHUP (` + "`systemctl reload pdnode`" + `) reads the configuration again. These keys are taken; a change of any other is named in the node's log line and takes a
restart, because what decides about pages is recorded in ` + "`NodeStarted`" + ` and holds for a life.

| key | a new value counts |
| --- | --- |
`)
	live, since := LiveKeys()
	for _, k := range live {
		fmt.Fprintf(&b, "| `%s` | %s |\n", k, since[k])
	}
	b.WriteString(`
Certificates and their keys, NATS credentials, ` + "`curve.peers_file`" + ` and the token of ` + "`http.token_file`" + ` are read again when the files change, without a signal.

## Keys

| key | takes | default | |
| --- | --- | --- | --- |
`)
	for _, r := range rows {
		def := ""
		if r.def != "" {
			def = "`" + r.def + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", r.key, r.kind, def, strings.ReplaceAll(r.text, "|", `\|`))
	}
	return b.Bytes()
}

func TestConfigurationReferenceIsCurrent(t *testing.T) {
	path := filepath.Join("..", "docs", "configuration.md")
	want := configReference(t)
	if *update {
		if err := os.WriteFile(path, want, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, want) {
		t.Fatal("docs/configuration.md is not current: go test ./node -run TestConfigurationReference -update")
	}
}
