//go:build mutants

package mutants

// model compares the engine with its reference model. Its first seed is fixed,
// so that a mutant that dies today dies tomorrow.
var model = killer{"./engine", "TestModel", "-model.sequences 300 -model.seed 1"}

// long is model for rules that few sequences meet.
var long = killer{"./engine", "TestModel", "-model.sequences 3000 -model.seed 1"}

// reason is one case of the table of outcomes.
func reason(outcome string) killer { return killer{"./engine", "TestDropReasons/" + outcome, ""} }

func engineTest(name string) killer  { return killer{"./engine", name, ""} }
func ledgerTest(name string) killer  { return killer{"./internal/statefile", name, ""} }
func sockTest(name string) killer    { return killer{"./internal/sock", name, ""} }
func tableTest(name string) killer   { return killer{"./internal/table", name, ""} }
func allocTest(name string) killer   { return killer{"./alloc", name, ""} }
func storeTest(name string) killer   { return killer{"./internal/store", name, ""} }
func httpapiTest(name string) killer { return killer{"./alloc/httpapi", name, ""} }
func protoTest(name string) killer   { return killer{"./proto", name, ""} }
func clientTest(name string) killer  { return killer{"./client", name, ""} }
