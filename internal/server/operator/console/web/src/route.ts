// The URL of the page: #/page/rest?name=value. Search, sort and page of a list are in it, so that
// a link, a reload and the back button show the same.
import { useEffect, useState } from "preact/hooks"

export interface Route { path: string[]; query: URLSearchParams }

function read(): Route {
  const [path = "", query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2)
  return { path: path.split("/").map(decodeURIComponent), query: new URLSearchParams(query) }
}

/** useRoute returns the URL, and renders again when it changes. */
export function useRoute(): Route {
  const [route, setRoute] = useState(read)
  useEffect(() => {
    const f = () => setRoute(read())
    addEventListener("hashchange", f)
    return () => removeEventListener("hashchange", f)
  }, [])
  return route
}

/** setQuery puts values into the URL, in place of its entry in the history. An empty one is left out. */
export function setQuery(values: Record<string, string>) {
  const { path, query } = read()
  for (const [name, value] of Object.entries(values)) {
    if (value) query.set(name, value)
    else query.delete(name)
  }
  const text = query.toString()
  history.replaceState(null, "", `#/${path.map(encodeURIComponent).join("/")}${text && "?" + text}`)
  dispatchEvent(new HashChangeEvent("hashchange"))
}
