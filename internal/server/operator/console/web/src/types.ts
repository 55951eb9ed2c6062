// Made from the types in Go by go test ./internal/server/operator/console -run TestTypes -rewrite. Do not edit.

export interface Stats {
  now: string
  since: string
  allocations: number
  bound: number
  links: number
  seats: number
  draining: boolean
  datagrams_in: number
  bytes_in: number
  datagrams_out: number
  bytes_out: number
  send_failed: number
  kernel_drops: number
  outcomes: Record<string, number>
  drops: Record<string, number>
  workers: number[]
  intakes: number[]
  fast_path: number
  workers_under_load: number
  state_complete: boolean
}

export interface RoundTrip {
  last: number
  p50: number
  p99: number
  lost: number
}

export interface Load {
  at: string
  datagrams_in: number
  datagrams_out: number
  bytes_in: number
  bytes_out: number
  drops: number
  p99: number
  allocations: number
  matches: number
  players: number
  links: number
  seats: number
  relays: number
}

export interface Condition {
  name: string
  state: string
  text: string
  page?: string
  since?: string
}

export interface Sample {
  at: string
  title: string
  mode: string
  host: string
  relay?: string
  region?: string
  since: string
  stats?: Stats
  worker_cpu?: number[]
  rtt?: RoundTrip
  load?: Load
  conditions: Condition[]
}

export interface Day {
  points: Load[]
  changes: Condition[]
}

export interface Traffic {
  datagrams_in_per_second: number
  bytes_in_per_second: number
  datagrams_out_per_second: number
  bytes_out_per_second: number
  dropped_per_second: number
}

export interface Node {
  id: string
  role: string
  region: string
  version: string
  lacks?: string[]
  state: string
  udp: string[] | null
  api: string
  since?: string
  last_heartbeat?: string
  allocations: number
  bound: number
  links: number
  matches?: number
  traffic?: Traffic
  load?: number
  seats: number
  max_seats: number
}

export interface Summary {
  host: string
  load: Load
  conditions?: Condition[]
}

export interface FleetNode extends Node {
  summary?: Summary
}

export interface StoreAway {
  region: string
  since: string
}

export interface FleetState {
  at: string
  nodes: FleetNode[] | null
  store_away_since?: string
  stores_away?: StoreAway[]
  error?: string
}

export interface Line {
  time: string
  level: string
  text: string
  attrs?: string
}

export interface Source {
  prefix: string
  rate: number
  count: number
  first: string
  last: string
  reasons: string[] | null
}

export interface Reason {
  means: string
  do: string
}

export interface AllocationCounts {
  datagrams_sent: number
  bytes_sent: number
  receiver_size_drops: number
  large_messages: number
}

export interface Allocation extends AllocationCounts {
  id: string
  role: string
  match: string
  join_code?: string
  player?: string
  project?: string
  environment?: string
  tenant: string
  bound: boolean
  transport?: string
  endpoint?: string
  recovered: boolean
  age_seconds: number
  heard_seconds_ago: number
  active_seconds_ago: number
  connections: number
  max_connections?: number
}

export interface Allocations {
  allocations: Allocation[]
  next: number
}

export interface Match {
  host: Allocation
  datagrams_per_second: number
  bytes_per_second: number
  relay?: string
}

export interface Missing {
  relay?: string
  region?: string
  reason: string
}

export interface Matches {
  matches: Match[]
  total: number
  truncated?: boolean
  missing?: Missing[]
}

export interface WhyEvent {
  id?: string
  relay?: string
  what: string
  reason?: string
  peer?: string
  endpoint?: string
  first: string
  last: string
  count: number
}

export interface WhyPlayer {
  id: string
  player?: string
  because: string
}

export interface Why {
  id: string
  role?: string
  join_code?: string
  player?: string
  known: boolean
  awaited?: boolean
  because: string
  events: WhyEvent[] | null
  players?: WhyPlayer[]
}

export interface ProjectTimeline {
  project: string
  events: WhyEvent[]
  missing?: Missing[]
}

export interface ProjectUsage {
  project?: string
  environment?: string
  tenant?: string
  others?: boolean
  allocations: number
  hosts: number
  players: number
  player_seconds: number
  datagrams: number
  bytes: number
}

export interface Usage {
  since: string
  projects: ProjectUsage[]
  missing?: Missing[]
}

export interface PlayerCounts {
  allocations: number
  live: number
  player_seconds: number
  datagrams: number
  bytes: number
}

export interface PlayerUsage extends PlayerCounts {
  player: string
  digest: string
  project: string
  environment: string
}

export interface PlayersUsage {
  since: string
  players: PlayerUsage[]
  others: PlayerCounts
  missing?: Missing[]
}

export interface Ban {
  id: string
  player?: string
  project?: string
  environment?: string
  prefix?: string
  since: string
  until: string
  reason?: string
}

export interface Bans {
  bans: Ban[]
  store_away_since?: string
  not_known?: boolean
}

export interface Affected {
  hosts: number
  joiners: number
  others?: number
  websockets: number
  shared?: number
  missing_relays?: number
  text?: string
  refused?: string
}

export interface CanaryTransport {
  transport: string
  region?: string
  matches: number
  failed: number
  until_in_median_seconds?: number
  until_in_p99_seconds?: number
  failing_since?: string
  failure?: string
}

export interface CanaryReport {
  name: string
  interval_seconds: number
  since: string
  transports: CanaryTransport[] | null
}

export interface Canary extends CanaryReport {
  reported: string
}

export interface Canaries {
  canaries: Canary[]
}

export interface DrainState {
  node?: string
  draining: boolean
  final: boolean
  deadline?: string
  threshold: number
  allocations: number
}

export interface Setting {
  key: string
  value: string
  source: string
  reloads: boolean
}

export interface Settings {
  settings: Setting[]
}

export interface SettingChange {
  key: string
  was: string
  now: string
}

export interface ReloadResult {
  changed: SettingChange[] | null
  needs_restart: SettingChange[] | null
  notes: string[] | null
}

export interface LogLevel {
  level: string
}

export interface Login {
  required: boolean
  signed_in: boolean
  role?: string
  person?: string
  oidc?: string
}
