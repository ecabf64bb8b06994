package node

import (
	"fmt"
	"log/slog"
	"os"
	"os/user"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/cockroachdb/errors"
	"github.com/go-viper/mapstructure/v2"
	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/providers/structs"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/pflag"
	yamlv3 "go.yaml.in/yaml/v3"

	"github.com/pdlog/pdlog/store/mirror"
)

// Where a value came from.
const (
	OriginDefault = "default"
	OriginFile    = "file"
	OriginEnv     = "env"
	OriginFlag    = "flag"
)

// EnvPrefix begins the variable of every key: PDNODE_PAGE_SIZE, PDNODE_NATS_URL.
const EnvPrefix = "PDNODE_"

// Variables with the prefix that are no keys.
var envOther = []string{"PDNODE_CONFIG"}

// Setting is one key of the effective configuration.
type Setting struct {
	Key    string
	Value  string
	Origin string // default, file, env or flag
}

// Loaded is a configuration and where its values came from.
type Loaded struct {
	Config
	settings []Setting
	origin   map[string]string
	path     string
}

// Effective lists every key, its value and its origin, in the order of Keys.
func (l *Loaded) Effective() []Setting { return slices.Clone(l.settings) }

// Keys lists every key, sorted.
func Keys() []string {
	k := koanf.New(".")
	if err := k.Load(structs.Provider(DefaultConfig(), "koanf"), nil); err != nil {
		return nil
	}
	return k.Keys()
}

// FlagName is the flag of a key: --page-size, --nats.embedded.
func FlagName(key string) string { return strings.ReplaceAll(key, "_", "-") }

// EnvName is the variable of a key.
func EnvName(key string) string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
}

// BindFlags adds a flag for every key. Only flags that are given count.
func BindFlags(fs *pflag.FlagSet) {
	k := koanf.New(".")
	if err := k.Load(structs.Provider(DefaultConfig(), "koanf"), nil); err != nil {
		return
	}
	for _, key := range k.Keys() {
		usage := fmt.Sprintf("key %s (default %q, environment %s)", key, show(k.Get(key)), EnvName(key))
		if _, isBool := k.Get(key).(bool); isBool {
			fs.Bool(FlagName(key), false, usage)
			fs.Lookup(FlagName(key)).DefValue = ""
			continue
		}
		fs.String(FlagName(key), "", usage)
	}
}

// Load builds the configuration of the file at path (empty: none), the
// environment (as os.Environ gives it) and the given flags (nil: none); each
// beats the one before it. An unknown key, a bad value or a bad combination is
// a *ConfigError of one line that names it; Validate has run.
func Load(path string, environ []string, flags *pflag.FlagSet) (*Loaded, error) {
	l, err := load(path, environ, flags)
	if err != nil {
		return nil, err
	}
	if err := l.Validate(); err != nil {
		return nil, l.place(err)
	}
	return l, nil
}

func load(path string, environ []string, flags *pflag.FlagSet) (*Loaded, error) {
	k := koanf.New(".")
	if err := k.Load(structs.Provider(DefaultConfig(), "koanf"), nil); err != nil {
		return nil, errors.Wrap(err, "load defaults")
	}
	keys := k.Keys()
	origin := make(map[string]string, len(keys))
	merge := func(layer map[string]any, from string) error {
		for key := range layer {
			if !slices.Contains(keys, key) {
				return badKey(key, "unknown key")
			}
			origin[key] = from
		}
		return errors.Wrap(k.Load(confmap.Provider(layer, "."), nil), "merge "+from)
	}
	file, err := fileLayer(path, keys)
	if err == nil {
		err = merge(file, OriginFile)
	}
	if err != nil {
		return nil, inFile(path, err)
	}
	env, err := envLayer(environ, keys)
	if err != nil {
		return nil, err
	}
	if err := merge(env, OriginEnv); err != nil {
		return nil, err
	}
	if err := merge(flagLayer(flags, keys), OriginFlag); err != nil {
		return nil, err
	}
	l := &Loaded{origin: origin, path: path}
	for _, key := range keys {
		from := origin[key]
		if from == "" {
			from = OriginDefault
		}
		l.settings = append(l.settings, Setting{Key: key, Value: settingText(key, k.Get(key)), Origin: from})
	}
	if err := unmarshal(k, &l.Config, origin); err != nil {
		return nil, l.place(err)
	}
	return l, nil
}

// settingText shows a value without the secrets that a URL can hold.
func settingText(key string, v any) string {
	if key == "nats.url" {
		return mirror.Redact(show(v))
	}
	return show(v)
}

// unmarshal reads key by key, so that an error names its key.
func unmarshal(k *koanf.Koanf, c *Config, origin map[string]string) error {
	for _, key := range k.Keys() {
		if origin[key] == "" {
			continue
		}
		probe := DefaultConfig()
		if err := decode(koanfOf(key, k.Get(key)), &probe); err != nil {
			return badKey(key, "bad value %q (from %s): want %s", show(k.Get(key)), origin[key], wanted(key))
		}
	}
	*c = DefaultConfig()
	return decode(k, c)
}

// wanted says in words what a key takes.
func wanted(key string) string {
	k := koanf.New(".")
	if err := k.Load(structs.Provider(DefaultConfig(), "koanf"), nil); err != nil {
		return "another"
	}
	switch k.Get(key).(type) {
	case time.Duration:
		return "a time with its unit, such as 1500ms, 30s or 5m"
	case bool:
		return "true or false"
	case int, int64:
		return "a whole number"
	case []string:
		return "a list"
	}
	return "text"
}

func koanfOf(key string, v any) *koanf.Koanf {
	k := koanf.New(".")
	_ = k.Load(confmap.Provider(map[string]any{key: v}, "."), nil) //nolint:errcheck // a map does not fail
	return k
}

func decode(k *koanf.Koanf, c *Config) error {
	return k.UnmarshalWithConf("", c, koanf.UnmarshalConf{
		Tag: "koanf",
		DecoderConfig: &mapstructure.DecoderConfig{
			Result:           c,
			WeaklyTypedInput: true,
			ErrorUnused:      true,
			DecodeHook: mapstructure.ComposeDecodeHookFunc(
				wholeNumbers, timesHaveUnits,
				mapstructure.StringToTimeDurationHookFunc(),
				mapstructure.StringToSliceHookFunc(","),
			),
		},
	})
}

// wholeNumbers refuses what a conversion would cut off: pages: 10.5, and a key
// for a number with nothing behind it.
func wholeNumbers(_, to reflect.Type, v any) (any, error) {
	switch to.Kind() {
	case reflect.Int, reflect.Int64:
		switch v := v.(type) {
		case float64:
			return nil, errors.Newf("%v is not whole", v)
		case string:
			if strings.TrimSpace(v) == "" {
				return nil, errors.New("empty")
			}
		}
	}
	return v, nil
}

// timesHaveUnits refuses a number for a time, 0 excepted: whoever wrote 30 did not
// mean nanoseconds.
func timesHaveUnits(from, to reflect.Type, v any) (any, error) {
	if to != reflect.TypeFor[time.Duration]() || from == to || from.Kind() == reflect.String {
		return v, nil
	}
	if fmt.Sprint(v) == "0" {
		return v, nil
	}
	return nil, errors.Newf("%v has no unit", v)
}

func fileLayer(path string, keys []string) (map[string]any, error) {
	if path == "" {
		return nil, nil
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, &ConfigError{Why: "read configuration: " + oneLine(err.Error())}
	}
	m, err := yaml.Parser().Unmarshal(b)
	if err != nil {
		return nil, &ConfigError{Why: "not YAML: " + oneLine(err.Error())}
	}
	flat := map[string]any{}
	flatten("", m, keys, flat)
	asWritten(b, flat)
	return flat, nil
}

// asWritten puts the text of the file in the place of a value that YAML has
// made a number or a truth of: socket_mode: 0660 is 0660, not 432, and a time
// without its unit is refused as it is everywhere else.
func asWritten(file []byte, flat map[string]any) {
	for key, v := range flat {
		switch v.(type) {
		case string, []any, map[string]any, nil:
			continue
		}
		if n := nodeOf(file, key); n != nil && n.Kind == yamlv3.ScalarNode {
			flat[key] = n.Value
		}
	}
}

// flatten turns nested maps into dotted keys, stopping at known keys.
func flatten(prefix string, m map[string]any, keys []string, out map[string]any) {
	for name, v := range m {
		key := prefix + name
		if sub, ok := v.(map[string]any); ok && !slices.Contains(keys, key) && len(sub) > 0 {
			flatten(key+".", sub, keys, out)
			continue
		}
		if v == nil && slices.Contains(keys, key) {
			continue // "key:" with nothing behind it keeps the default
		}
		out[key] = v
	}
}

func envLayer(environ, keys []string) (map[string]any, error) {
	byName := make(map[string]string, len(keys))
	for _, key := range keys {
		byName[EnvName(key)] = key
	}
	out := map[string]any{}
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(name, EnvPrefix) || slices.Contains(envOther, name) {
			continue
		}
		key, ok := byName[name]
		if !ok {
			return nil, badKey(name, "unknown environment variable")
		}
		out[key] = value
	}
	return out, nil
}

func flagLayer(flags *pflag.FlagSet, keys []string) map[string]any {
	out := map[string]any{}
	if flags == nil {
		return out
	}
	for _, key := range keys {
		if f := flags.Lookup(FlagName(key)); f != nil && f.Changed {
			out[key] = f.Value.String()
		}
	}
	return out
}

// place says where a bad value comes from: which line of the file, or which
// variable.
func (l *Loaded) place(err error) error {
	var c *ConfigError
	if !errors.As(err, &c) {
		return err
	}
	switch l.origin[c.Key] {
	case OriginFile, "":
		return inFile(l.path, err)
	case OriginEnv:
		for _, s := range l.settings {
			if s.Key == c.Key {
				c.Env = EnvName(c.Key) + "=" + oneLine(s.Value)
			}
		}
	}
	return c
}

// inFile says in which file a bad value stands, and in which line.
func inFile(path string, err error) error {
	var c *ConfigError
	if !errors.As(err, &c) {
		return err
	}
	c.File, c.Line = path, lineOf(path, c.Key)
	return c
}

// lineOf is where a key stands in a YAML file; 0 if it does not.
func lineOf(path, key string) int {
	b, err := os.ReadFile(path)
	if err != nil || key == "" {
		return 0
	}
	line, _ := walk(b, key)
	return line
}

// nodeOf is the value of a key in a YAML document; nil if it is not there.
func nodeOf(file []byte, key string) *yamlv3.Node {
	_, n := walk(file, key)
	return n
}

// walk goes down a YAML document along a dotted key, to the line of the last
// word of it that is there, and to the value if all are.
func walk(file []byte, key string) (line int, value *yamlv3.Node) {
	var doc yamlv3.Node
	if yamlv3.Unmarshal(file, &doc) != nil || len(doc.Content) == 0 {
		return 0, nil
	}
	at := doc.Content[0]
	for _, word := range strings.Split(key, ".") {
		i := 0
		for ; i+1 < len(at.Content) && at.Content[i].Value != word; i += 2 {
		}
		if at.Kind != yamlv3.MappingNode || i+1 >= len(at.Content) {
			return line, nil // what is missing stands, if anywhere, below what is there
		}
		line, at = at.Content[i].Line, at.Content[i+1]
	}
	return line, at
}

func show(v any) string {
	switch v := v.(type) {
	case []any:
		var s []string
		for _, e := range v {
			s = append(s, fmt.Sprint(e))
		}
		return strings.Join(s, ",")
	case []string:
		return strings.Join(v, ",")
	case nil:
		return ""
	}
	return fmt.Sprint(v)
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// CheckFiles reads the files that the configuration names, as the start does. The
// error is one line that names the key, like that of Load.
func (l *Loaded) CheckFiles() error { return l.place(l.checkFiles()) }

func (c *Config) checkFiles() error {
	if c.SocketGroup != "" {
		if _, err := user.LookupGroup(c.SocketGroup); err != nil {
			return badKey("socket_group", "%v", err)
		}
	}
	quiet := slog.New(slog.DiscardHandler)
	if _, err := openCurve(&c.Curve, quiet); err != nil {
		return err
	}
	for _, t := range []struct {
		key string
		tls TLSConfig
	}{{"engine.tls", c.Engine.TLS}, {"http.tls", c.HTTP.TLS}, {"rdma.tls", c.RDMA.TLS}} {
		if t.tls.Cert == "" {
			continue
		}
		if _, err := t.tls.server(t.key, quiet); err != nil {
			return err
		}
	}
	for _, f := range []struct{ key, path string }{
		{"http.token_file", c.HTTP.TokenFile}, {"nats.credentials", c.NATS.Credentials}, {"nats.nkey", c.NATS.NKey},
		{"nats.ca", c.NATS.CA}, {"nats.cert", c.NATS.Cert}, {"nats.key", c.NATS.Key},
	} {
		if f.path == "" {
			continue
		}
		if _, err := os.ReadFile(f.path); err != nil {
			return badKey(f.key, "%v", err)
		}
	}
	return nil
}
