package redisstore

import (
	"reflect"
	"strings"
	"testing"
)

// TestLibraryHidden: no type of a store leads to one of the client library, which the compiler would look at again for
// each package that imports this one.
func TestLibraryHidden(t *testing.T) {
	seen := map[reflect.Type]bool{}
	var visit func(typ reflect.Type, path string)
	visit = func(typ reflect.Type, path string) {
		if seen[typ] {
			return
		}
		seen[typ] = true
		if strings.Contains(typ.PkgPath(), "go-redis") {
			t.Errorf("%s is %s", path, typ)
			return
		}
		switch typ.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Chan, reflect.Map:
			visit(typ.Elem(), path)
		case reflect.Struct:
			for field := range typ.Fields() {
				visit(field.Type, path+"."+field.Name)
			}
		case reflect.Interface:
			for method := range typ.Methods() {
				visit(method.Type, path+"."+method.Name)
			}
		case reflect.Func:
			for in := range typ.Ins() {
				visit(in, path)
			}
			for out := range typ.Outs() {
				visit(out, path)
			}
		}
	}
	visit(reflect.TypeFor[Stores](), "Stores")
	visit(reflect.TypeFor[Store](), "Store")
	visit(reflect.TypeFor[APIRegistry](), "APIRegistry")
}
