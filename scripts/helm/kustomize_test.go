package helm

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// kustomized returns the objects that kubectl apply -k makes of the manifests, with further lines of
// the kustomization.
func kustomized(t *testing.T, lines string) []object {
	t.Helper()
	files := filesys.MakeFsInMemory()
	err := filepath.WalkDir(kubernetes, func(name string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(kubernetes, name)
		text := read(t, name)
		if rel == "kustomization.yaml" {
			text += lines
		}
		return files.WriteFile("/base/"+filepath.ToSlash(rel), []byte(text))
	})
	if err != nil {
		t.Fatal(err)
	}
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(files, "/base")
	if err != nil {
		t.Fatal(err)
	}
	text, err := resources.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return checkObjects(t, map[string]string{"all.yaml": string(text)})
}

// TestKustomization checks that the kustomization gives the objects of the chart, field by field,
// with the component node-address and without. The component is a patch of Kustomize, which no
// template can write, so its text is not from the chart.
func TestKustomization(t *testing.T) {
	values := read(t, filepath.Join(filepath.Dir(directory), "manifests.yaml"))
	const image = "image: {repository: ghcr.io/ferryrelay/ferry, tag: set-the-digest}"
	for name, c := range map[string]struct{ values, lines string }{
		"base":         {"", ""},
		"node-address": {"relay: {advertise: ExternalIP}", "components: [node-address]\n"},
	} {
		var texts [2][]string
		for i, all := range [][]object{objects(t, render(t, values, image, c.values)), kustomized(t, c.lines)} {
			for _, o := range all {
				sortByName(o.fields.Object)
				text, err := json.MarshalIndent(o.fields.Object, "", " ")
				if err != nil {
					t.Fatal(err)
				}
				texts[i] = append(texts[i], string(text))
			}
			slices.Sort(texts[i])
		}
		if len(texts[0]) != len(texts[1]) {
			t.Errorf("%s: the chart has %d objects, the kustomization %d", name, len(texts[0]), len(texts[1]))
			continue
		}
		for i, text := range texts[0] {
			if other := texts[1][i]; text != other {
				t.Errorf("%s: the chart and the kustomization differ:\n%s", name, difference(text, other))
			}
		}
	}
}

// sortByName sorts the lists of variables, volumes and mounts, whose order has no effect.
func sortByName(v any) {
	switch v := v.(type) {
	case map[string]any:
		for key, child := range v {
			sortByName(child)
			if items, ok := child.([]any); ok && slices.Contains([]string{"env", "volumes", "volumeMounts"}, key) {
				slices.SortFunc(items, func(a, b any) int {
					return strings.Compare(a.(map[string]any)["name"].(string), b.(map[string]any)["name"].(string))
				})
			}
		}
	case []any:
		for _, child := range v {
			sortByName(child)
		}
	}
}

func difference(a, b string) string {
	as, bs := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(as), len(bs)) {
		if as[i] != bs[i] {
			from := max(0, i-8)
			return strings.Join(as[from:min(len(as), i+4)], "\n") + "\n---\n" + strings.Join(bs[from:min(len(bs), i+4)], "\n")
		}
	}
	return "one is longer"
}
