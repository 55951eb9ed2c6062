export { Allocations, ApiError, type Allocation, type Endpoint } from "./allocations.ts"
export { Connection, RelayError, type ConnectionEvent, type ConnectionOptions, type Reason } from "./connection.ts"
export type { Bytes } from "./messages.ts"
