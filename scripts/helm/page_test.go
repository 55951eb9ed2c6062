package helm

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/kustomize/kyaml/yaml"
)

// valuesAt is the heading behind which README.md of the chart has the values.
const valuesAt = "## Values\n"

// TestValuesPage checks that the table in README.md has each value with its default and its comment.
func TestValuesPage(t *testing.T) {
	var top yaml.Node
	if err := yaml.Unmarshal([]byte(read(t, directory+"/values.yaml")), &top); err != nil {
		t.Fatal(err)
	}
	table := &strings.Builder{}
	table.WriteString("\n`make manifests` writes this table from [values.yaml](values.yaml).\n\n| value | default | meaning |\n|---|---|---|\n")
	rows := valueRows(t, table, top.Content[0], "")
	if rows < 70 {
		t.Errorf("%d values were read", rows)
	}
	name := filepath.Join(directory, "README.md")
	before, _, ok := strings.Cut(read(t, name), valuesAt)
	if !ok {
		t.Fatalf("%s has no heading Values", name)
	}
	compare(t, name, before+valuesAt+table.String())
}

// valueRows writes a row for each value of a mapping that has a comment, and asks for one where
// neither a value nor those in it have one.
func valueRows(t *testing.T, table *strings.Builder, mapping *yaml.Node, prefix string) (rows int) {
	t.Helper()
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		key, value := mapping.Content[i], mapping.Content[i+1]
		path, comment := prefix+key.Value, []string{}
		for line := range strings.Lines(key.HeadComment) {
			comment = append(comment, strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "#")))
		}
		text := strings.Join(comment, " ")
		switch {
		case prefix == "" && i == 0: // the comment of the file, or that of an object
			fallthrough
		case text == "" && value.Kind == yaml.MappingNode && len(value.Content) > 0:
			rows += valueRows(t, table, value, path+".")
		case text == "":
			t.Errorf("values.yaml has no comment above %s", path)
		default:
			fmt.Fprintf(table, "| `%s` | %s | %s |\n", path, standard(t, value), text)
			rows++
		}
	}
	return rows
}

// standard is a default in a cell of the table: values.yaml shows those of several lines.
func standard(t *testing.T, value *yaml.Node) string {
	t.Helper()
	flow := *value
	flow.Style = yaml.FlowStyle
	flow.HeadComment = ""
	text, err := yaml.Marshal(&flow)
	if err != nil {
		t.Fatal(err)
	}
	if s := strings.TrimSpace(string(text)); !strings.Contains(s, "\n") && len(s) < 60 {
		return "`" + s + "`"
	}
	return "values.yaml"
}
