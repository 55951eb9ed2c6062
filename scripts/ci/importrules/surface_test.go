package importrules

import (
	"fmt"
	"go/types"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"
)

// publicPackages returns the packages that other modules can import, without commands,
// examples and scripts.
func publicPackages(t *testing.T) []*packages.Package {
	t.Helper()
	var patterns []string
	for _, dir := range []string{"proto", "alloc", "engine", "client", "bench", "relay"} {
		patterns = append(patterns, module+"/"+dir+"/...")
	}
	found, err := packages.Load(&packages.Config{Mode: packages.LoadTypes, Dir: "../../.."}, patterns...)
	if err != nil {
		t.Fatal(err)
	}
	var public []*packages.Package
	for _, p := range found {
		for _, err := range p.Errors {
			t.Fatal(err)
		}
		if !isInternal(p.PkgPath) && p.Name != "main" {
			public = append(public, p)
		}
	}
	return public
}

func isInternal(path string) bool { return strings.Contains(path+"/", "/internal/") }

// privateMembers have types of these packages: what they are for is of no use to another module.
var privateMembers = map[string]string{" Private": module + "/internal/privateapi", " Driver": module + "/engine/internal/driver"}

// TestPublicTypes: a reader of the documentation of a public package can look up every type
// that an exported name mentions, but for those of privateMembers.
func TestPublicTypes(t *testing.T) {
	names := 0
	for _, p := range publicPackages(t) {
		scope := p.Types.Scope()
		for _, name := range scope.Names() {
			if obj := scope.Lookup(name); obj.Exported() {
				names++
				for _, found := range internalTypes(obj) {
					t.Errorf("%s.%s mentions %s: no other module can name it", strings.TrimPrefix(p.PkgPath, module+"/"), name, found)
				}
			}
		}
	}
	if names < 300 {
		t.Errorf("only %d exported names: the test looks in the wrong place", names)
	}
	t.Logf("%d exported names", names)
}

// internalTypes returns the internal types that the declaration of an exported object mentions,
// each with the member that mentions it.
func internalTypes(obj types.Object) (found []string) {
	w := typeWalk{seen: make(map[types.Type]bool), report: func(where, name string) {
		found = append(found, strings.TrimSpace(fmt.Sprintf("%s %s", name, where)))
	}}
	name, ok := obj.(*types.TypeName)
	if !ok {
		w.visit("", obj.Type())
		return found
	}
	if alias, ok := name.Type().(*types.Alias); ok {
		w.visit("as an alias", alias.Rhs())
		return found
	}
	w.declaration(name.Type().(*types.Named))
	return found
}

// typeWalk visits the types that a declaration mentions, as far as they are exported.
type typeWalk struct {
	seen   map[types.Type]bool
	report func(where, name string)
}

func (w *typeWalk) declaration(named *types.Named) {
	w.params("in a type parameter", named.TypeParams())
	w.visit("", named.Underlying())
	for m := range named.Methods() {
		if m.Exported() {
			w.visit("in method "+m.Name(), m.Type())
		}
	}
}

func (w *typeWalk) params(where string, list *types.TypeParamList) {
	for p := range list.TypeParams() {
		w.visit(where, p.Constraint())
	}
}

func (w *typeWalk) named(where string, obj *types.TypeName, args *types.TypeList) {
	pkg := obj.Pkg()
	if pkg != nil && isInternal(pkg.Path()) && strings.HasPrefix(pkg.Path(), module) &&
		privateMembers[where[max(0, strings.LastIndex(where, " ")):]] != pkg.Path() {
		w.report(where, strings.TrimPrefix(pkg.Path(), module+"/")+"."+obj.Name())
	}
	for arg := range args.Types() {
		w.visit(where, arg)
	}
}

func (w *typeWalk) visit(where string, t types.Type) {
	switch t := t.(type) {
	case *types.Alias:
		w.named(where, t.Obj(), t.TypeArgs())
		w.visit(where, t.Rhs())
	case *types.Named:
		w.named(where, t.Obj(), t.TypeArgs())
		// A type that is not exported has no documentation of its own, but its methods can be called.
		if obj := t.Obj(); !obj.Exported() && obj.Pkg() != nil && strings.HasPrefix(obj.Pkg().Path(), module) && !w.seen[t] {
			w.seen[t] = true
			w.declaration(t)
		}
	case *types.Struct:
		for f := range t.Fields() {
			if f.Exported() || f.Embedded() {
				w.visit(strings.TrimSpace(where+" in field "+f.Name()), f.Type())
			}
		}
	case *types.Interface:
		for m := range t.ExplicitMethods() {
			if m.Exported() {
				w.visit(strings.TrimSpace(where+" in method "+m.Name()), m.Type())
			}
		}
		for e := range t.EmbeddedTypes() {
			w.visit(where, e)
		}
	case *types.Signature:
		w.params(where, t.TypeParams())
		w.visit(where, t.Params())
		w.visit(where, t.Results())
	case *types.Tuple:
		for v := range t.Variables() {
			w.visit(where, v.Type())
		}
	case *types.Union:
		for term := range t.Terms() {
			w.visit(where, term.Type())
		}
	case *types.Map:
		w.visit(where, t.Key())
		w.visit(where, t.Elem())
	case interface{ Elem() types.Type }: // pointers, slices, arrays, channels
		w.visit(where, t.Elem())
	}
}
