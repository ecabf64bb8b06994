package deploy

import (
	"regexp"
	"strings"
	"testing"
)

// The Dockerfile cannot be built where there is no Docker: what it rests on is
// held here.
func TestDockerfileFitsTheTreeAndTheManifests(t *testing.T) {
	text := string(read(t, "docker/Dockerfile"))
	for _, dir := range regexp.MustCompile(`\./cmd/\w+`).FindAllString(text, -1) {
		read(t, "../"+dir+"/main.go")
	}
	goVersion := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(string(read(t, "../go.mod")))
	if goVersion == nil || !strings.Contains(text, "FROM golang:"+goVersion[1]+"-") {
		t.Errorf("it does not build with Go %v", goVersion)
	}
	if n := strings.Count(text, "bookworm"); n != 2 {
		t.Errorf("build and run are on %d images of one Debian: libzmq would not fit", n)
	}
	manifest := string(read(t, "kubernetes/pdnode.yaml"))
	user := regexp.MustCompile(`runAsUser: (\d{2,})`).FindStringSubmatch(manifest)
	if user == nil || !strings.Contains(text, "\nUSER "+user[1]+":"+user[1]+"\n") {
		t.Errorf("the manifests run it as %v", user)
	}
	for _, want := range []string{`ENTRYPOINT ["/usr/bin/pdnode"]`, "--from=build /out/pdnode /out/pdreplay /usr/bin/", "libzmq5", "/etc/pdnode/pdnode.yaml"} {
		if !strings.Contains(text, want) {
			t.Errorf("it lacks %q", want)
		}
	}
	for _, ignored := range []string{"cmd", "events", "go.mod", "deploy"} {
		for _, line := range strings.Fields(string(read(t, "../.dockerignore"))) {
			if line == ignored {
				t.Errorf(".dockerignore keeps %s from the build", ignored)
			}
		}
	}
}
