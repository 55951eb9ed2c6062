package importrules

import (
	"go/ast"
	"testing"
)

// maxFields and maxMethods are the size above which a type does several things. A struct whose fields
// are all exported is data, such as a configuration, and may have any number of them.
const maxFields, maxMethods = 20, 25

type size struct{ fields, methods int }

// TestSizes verifies that types stay small outside of engine, whose workers and control have their
// state in one place each, and of tests.
func TestSizes(t *testing.T) {
	found, methods := map[string]size{}, map[string]bool{}
	for _, s := range sources(t) {
		if s.test || within(s.dir, "engine") || within(s.dir, "scripts") || within(s.dir, "internal/test") {
			continue
		}
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv != nil {
				name := s.dir + "." + receiver(f)
				if method := name + "." + f.Name.Name; !methods[method] { // Another system's file may have it too.
					methods[method] = true
					found[name] = size{found[name].fields, found[name].methods + 1}
				}
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				if st, ok := spec.Type.(*ast.StructType); ok {
					name := s.dir + "." + spec.Name.Name
					found[name] = size{max(found[name].fields, countFields(st)), found[name].methods}
				}
			}
			return true
		})
	}
	if len(found) < 500 {
		t.Errorf("only %d types: the test looks in the wrong place", len(found))
	}
	for name, n := range found {
		if n.fields > maxFields || n.methods > maxMethods {
			t.Errorf("%s has %d fields and %d methods, more than %d and %d: let another type have some of them",
				name, n.fields, n.methods, maxFields, maxMethods)
		}
	}
}

// countFields returns the number of fields of a struct, 0 if all are exported.
func countFields(st *ast.StructType) int {
	n, data := 0, true
	for _, f := range st.Fields.List {
		n += max(len(f.Names), 1)
		for _, name := range f.Names {
			data = data && name.IsExported()
		}
	}
	if data {
		return 0
	}
	return n
}

func receiver(f *ast.FuncDecl) string {
	expr := f.Recv.List[0].Type
	for {
		switch e := expr.(type) {
		case *ast.StarExpr:
			expr = e.X
		case *ast.IndexExpr:
			expr = e.X
		case *ast.IndexListExpr:
			expr = e.X
		case *ast.Ident:
			return e.Name
		default:
			return ""
		}
	}
}
