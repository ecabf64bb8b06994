package manifests

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/yaml"
)

// decode takes a stream of manifests apart and decodes each as the API server
// does with fieldValidation=Strict: an unknown or doubled field is an error.
func decode(t *testing.T, text []byte) (objects []runtime.Object) {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{appsv1.AddToScheme, corev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	strict := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	for _, doc := range bytes.Split(text, []byte("\n---\n")) {
		if plain, err := yaml.YAMLToJSON(doc); err != nil {
			t.Fatalf("%v\n%s", err, doc)
		} else if string(plain) == "null" {
			continue // comments alone
		}
		o, _, err := strict.Decode(doc, nil, nil)
		if err != nil {
			t.Fatalf("%v\n%s", err, doc)
		}
		objects = append(objects, o)
	}
	return objects
}

func kinds(objects []runtime.Object) (out []string) {
	for _, o := range objects {
		out = append(out, o.GetObjectKind().GroupVersionKind().Kind)
	}
	slices.Sort(out)
	return out
}

// set is what must hold for the DaemonSet, wherever it comes from.
func set(t *testing.T, objects []runtime.Object, role string) *appsv1.DaemonSet {
	t.Helper()
	for _, o := range objects {
		d, ok := o.(*appsv1.DaemonSet)
		if !ok {
			continue
		}
		for k, v := range d.Spec.Selector.MatchLabels {
			if d.Spec.Template.Labels[k] != v {
				t.Errorf("the selector's %s=%s does not choose the pods", k, v)
			}
		}
		pod := d.Spec.Template.Spec
		mounted := map[string]bool{}
		for _, m := range pod.Containers[0].VolumeMounts {
			mounted[m.MountPath] = true
			if !slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name }) {
				t.Errorf("no volume is named %s", m.Name)
			}
		}
		if !pod.HostNetwork || !mounted["/run/pdnode"] || !mounted["/var/lib/pdnode"] || !mounted["/dev/shm"] {
			t.Errorf("host network %v, mounts %v", pod.HostNetwork, mounted)
		}
		if *pod.TerminationGracePeriodSeconds <= 10 || d.Name != "pdnode-"+role {
			t.Errorf("%s is killed after %d s", d.Name, *pod.TerminationGracePeriodSeconds)
		}
		return d
	}
	t.Fatal("no DaemonSet")
	return nil
}

func TestPlainManifestsDecodeStrictly(t *testing.T) {
	files, err := filepath.Glob("../../deploy/kubernetes/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%v %v", files, err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		objects := decode(t, text)
		if k := strings.Join(kinds(objects), " "); k != "ConfigMap DaemonSet Namespace" {
			t.Errorf("%s: %s", f, k)
		}
		set(t, objects, "decode")
	}
}

func TestAFieldThatIsNotThereIsRefused(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := appsv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	strict := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	_, _, err := strict.Decode([]byte("apiVersion: apps/v1\nkind: DaemonSet\nspec: {hostNetwrk: true}\n"), nil, nil)
	if !runtime.IsStrictDecodingError(err) {
		t.Errorf("have %v", err)
	}
}

// chart renders the chart with HELM, the path of helm.
func chart(t *testing.T, args ...string) []byte {
	t.Helper()
	helm := os.Getenv("HELM")
	if helm == "" {
		t.Skip("needs HELM, the path of helm: make check-packages")
	}
	all := append([]string{"template", "pool", "../../deploy/helm/pdnode", "--namespace", "pdlog", "--kube-version", "1.30"}, args...)
	out, err := exec.Command(helm, all...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return out
}

func TestChartRendersWhatTheManifestsSay(t *testing.T) {
	text, err := os.ReadFile("../../deploy/kubernetes/pdnode.yaml")
	if err != nil {
		t.Fatal(err)
	}
	rendered := decode(t, chart(t))
	if k := strings.Join(kinds(rendered), " "); k != "ConfigMap DaemonSet" {
		t.Errorf("the chart renders %s", k)
	}
	plain, ours := set(t, decode(t, text), "decode"), set(t, rendered, "decode")
	for _, d := range []*appsv1.DaemonSet{plain, ours} { // what the chart adds
		delete(d.Spec.Selector.MatchLabels, "app.kubernetes.io/instance")
		delete(d.Spec.Template.Labels, "app.kubernetes.io/instance")
		delete(d.Spec.Template.Annotations, "checksum/config")
		for _, list := range [][]corev1.Container{d.Spec.Template.Spec.Containers, d.Spec.Template.Spec.InitContainers} {
			for i := range list {
				list[i].ImagePullPolicy = ""
			}
		}
	}
	a, err := yaml.Marshal(plain.Spec)
	if err != nil {
		t.Fatal(err)
	}
	b, err := yaml.Marshal(ours.Spec)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a, b) {
		t.Errorf("the manifests say\n%s\nthe chart says\n%s", a, b)
	}
}

func TestChartTakesItsOptions(t *testing.T) {
	values := filepath.Join(t.TempDir(), "prefill.yaml")
	err := os.WriteFile(values, []byte(`
nodeSelector: {pdlog.dev/role: prefill}
config: {role: prefill, bootstrap: "0.0.0.0:8998", peers: null, pages: null}
secrets: [{name: nats, secretName: pdnode-nats}]
paths: {infiniband: true}
`), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	d := set(t, decode(t, chart(t, "-f", values)), "prefill")
	mounts := map[string]bool{}
	for _, m := range d.Spec.Template.Spec.Containers[0].VolumeMounts {
		mounts[m.MountPath] = true
	}
	if !mounts["/dev/infiniband"] || !mounts["/etc/pdnode-secrets/nats"] || d.Spec.Template.Spec.NodeSelector["pdlog.dev/role"] != "prefill" {
		t.Errorf("mounts %v, node selector %v", mounts, d.Spec.Template.Spec.NodeSelector)
	}
	helm := os.Getenv("HELM")
	for _, bad := range []string{"paths.dta=/x", "config.role=router", "config.node=n1", "user=0"} {
		out, err := exec.Command(helm, "template", "pool", "../../deploy/helm/pdnode", "--kube-version", "1.30", "--set", bad).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "values don't meet the specifications") {
			t.Errorf("%s: %v %s", bad, err, out)
		}
	}
}
