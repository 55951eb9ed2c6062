package engine

import "reflect"

func sizeOf[T any]() uintptr { return reflect.TypeFor[T]().Size() }

func fieldOffsets[T any]() map[string]uintptr {
	offsets := map[string]uintptr{}
	t := reflect.TypeFor[T]()
	for i := range t.NumField() {
		offsets[t.Field(i).Name] = t.Field(i).Offset
	}
	return offsets
}
