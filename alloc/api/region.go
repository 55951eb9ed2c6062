package api

// Region is a place where relays stand. Its id is a free string.
type Region struct {
	ID          string `json:"id"`
	Description string `json:"description"`
}
