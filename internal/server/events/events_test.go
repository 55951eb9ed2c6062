package events

import (
	"reflect"
	"slices"
	"testing"

	"github.com/ferryrelay/ferry/engine"
)

// TestOrder: subscribers are called in the order of their subscription, without an allocation.
func TestOrder(t *testing.T) {
	var s Stream
	publish := s.RelayHooks().OnBind // taken before there is a subscriber
	var order []int
	for i := range 3 {
		s.Bind.Subscribe(func(e engine.BindEvent) {
			if e.First {
				order = append(order, i)
			}
		})
	}
	publish(engine.BindEvent{First: true})
	if !slices.Equal(order, []int{0, 1, 2}) {
		t.Errorf("order %v", order)
	}
	if n := testing.AllocsPerRun(100, func() { publish(engine.BindEvent{}) }); n != 0 {
		t.Errorf("%v allocations per event", n)
	}
}

// TestRelayHooks: each hook of the relay publishes to the topic of its name, except for Admit.
func TestRelayHooks(t *testing.T) {
	var s Stream
	hooks, stream := s.RelayHooks(), reflect.ValueOf(&s)
	for _, hooks := range []reflect.Value{reflect.ValueOf(hooks), reflect.ValueOf(hooks.Private)} {
		for i := range hooks.NumField() {
			name := hooks.Type().Field(i).Name
			if name == "Admit" || name == "Private" {
				continue
			}
			called := false
			topic := stream.Elem().FieldByName(name[len("On"):]).Addr()
			f := topic.MethodByName("Subscribe").Type().In(0)
			topic.MethodByName("Subscribe").Call([]reflect.Value{reflect.MakeFunc(f, func([]reflect.Value) []reflect.Value {
				called = true
				return nil
			})})
			hooks.Field(i).Call([]reflect.Value{reflect.Zero(f.In(0))})
			if !called {
				t.Errorf("%s publishes nothing", name)
			}
		}
	}
}
