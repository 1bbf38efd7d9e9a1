"""The vocabulary of `long_messages`: parts of an invented system, what goes wrong with them, and how one asks about it later.

Braces are filled in per message: {c} {ident} {path} {as} name a part, {lib} {who} {code} {n} {m} vary; all of it is made up.
"""

from typing import NamedTuple


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


class Part(NamedTuple):
    """A component: what it is called, in code, where it lies, and in other words."""

    c: str
    ident: str
    path: str
    other: str


class Fact(NamedTuple):
    """A sentence of an answer, and three questions: with identifiers, in plain words, in other words than the text."""

    text: str
    exact: str
    plain: str
    other: str


class Topic(NamedTuple):
    title: str
    asked: tuple[str, ...]
    facts: tuple[Fact, ...]
    more: tuple[str, ...]
    """Sentences that any answer about it may hold."""


PARTS = tuple(
    Part(*line.split(" | "))
    for line in """
invoice exporter | invoice_exporter | services/billing/invoice_exporter.py | the thing that writes out bills
thumbnail worker | thumbnail_worker | workers/media/thumbnail_worker.py | the job that shrinks pictures
login gateway | login_gateway | edge/auth/login_gateway.go | the place where people sign in
search indexer | search_indexer | services/search/search_indexer.py | the process that makes things findable
mail dispatcher | mail_dispatcher | services/notify/mail_dispatcher.ts | what sends our newsletters out
stock ledger | stock_ledger | core/inventory/stock_ledger.rs | the bookkeeping of what lies in the warehouse
report builder | report_builder | services/reports/report_builder.py | the nightly summaries
session store | session_store | edge/auth/session_store.go | where we remember who is signed in
price calculator | price_calculator | core/pricing/price_calculator.rs | the code that works out what a customer owes
upload proxy | upload_proxy | edge/files/upload_proxy.go | the entrance for files
audit trail | audit_trail | services/compliance/audit_trail.py | the record of who did what
feed importer | feed_importer | workers/catalog/feed_importer.py | what takes over the suppliers' lists
webhook relay | webhook_relay | services/partners/webhook_relay.ts | the thing that calls our partners back
chat backend | chat_backend | services/support/chat_backend.ts | the conversations of the help desk
device registry | device_registry | services/fleet/device_registry.go | the list of machines in the field
route planner | route_planner | core/logistics/route_planner.rs | the code that finds the way for drivers
payment bridge | payment_bridge | services/billing/payment_bridge.ts | what talks to the banks
admin dashboard | admin_dashboard | web/admin/admin_dashboard.tsx | the internal screens for staff
mobile sync | mobile_sync | services/app/mobile_sync.go | how phones get their data
translation cache | translation_cache | web/i18n/translation_cache.ts | the stored texts in other languages
backup runner | backup_runner | ops/backup/backup_runner.py | what makes copies of everything at night
metrics collector | metrics_collector | ops/telemetry/metrics_collector.go | what counts and times our requests
schema registry | schema_registry | core/contracts/schema_registry.rs | the agreed shapes of our messages
campaign editor | campaign_editor | web/marketing/campaign_editor.tsx | the tool in which marketing draws its ads
""".strip().splitlines()
)

TOPICS = (
    Topic(
        "Connection pool",
        ("The {c} runs out of database connections every evening, can you look into it?", "{c}: `too many clients`, again."),
        (
            Fact(
                "The leak is in the error path: when a query fails, `{ident}` never hands its cursor back, so every failure "
                "costs one slot until the process is restarted.",
                "cursor leak in {ident}",
                "Why did the {c} run out of connections?",
                "What was holding on to the links of the {c} after something went wrong?",
            ),
            Fact(
                "I set `pool_size` to {n} and `pool_recycle` to {m} seconds for the {c}; anything larger only moves the queue "
                "from the application into the server.",
                "pool_recycle of {ident}",
                "What size does the pool of the {c} have now?",
                "How many links to the store may {other} open at once?",
            ),
            Fact(
                "We decided against putting {lib} in front of the {c}, because prepared statements would stop working in "
                "transaction mode.",
                "{lib} for {ident}, prepared statements",
                "Why did we not put {lib} in front of the {c}?",
                "What spoke against a go-between for {other}?",
            ),
        ),
        (
            "A pool is a queue with a limit: what matters is how long a borrower keeps what it has borrowed.",
            "Idle connections cost memory on the server, about ten megabytes each with the settings that we use.",
            "Under load the wait for a free slot shows up as latency long before anything fails.",
            "The statement timeout should always be shorter than the time one is willing to wait for a slot.",
        ),
    ),
    Topic(
        "Migration without downtime",
        ("We need a new column in the table behind the {c}, without stopping it.", "How do we migrate the {c} while it runs?"),
        (
            Fact(
                "Step one only adds the column `origin_{n}` as nullable; the backfill of the {c} then goes in batches of {m} "
                "rows with a pause of 50 ms in between.",
                "origin_{n} backfill",
                "In what batches does the backfill of the {c} go?",
                "How large are the portions in which {other} gets its old records filled up?",
            ),
            Fact(
                "The old release of the {c} must be able to write into the new table for at least one day, which is why the "
                "constraint is added as NOT VALID and validated only afterwards.",
                "NOT VALID constraint {ident}",
                "Why is the constraint of the {c} validated only afterwards?",
                "How long do two versions of {other} have to get along with each other?",
            ),
            Fact(
                "{who} will drop the leftover trigger `sync_{ident}` once the dashboards have been green for a week.",
                "who removes sync_{ident}",
                "Who will drop the trigger that the migration of the {c} leaves behind?",
                "Who cleans up after the change of the tables for {other}?",
            ),
        ),
        (
            "Expand, migrate, contract: each of the three is a release of its own, and each can be taken back.",
            "A lock that is held for two seconds is an outage of two seconds, and everything queues behind it.",
            "Creating an index concurrently takes longer but does not keep anybody from writing.",
            "The plan is written so that stopping after any step leaves a system that works.",
        ),
    ),
    Topic(
        "Stale cache",
        ("Customers see old data in the {c} for minutes after a change.", "Why does the {c} show values that are long gone?"),
        (
            Fact(
                "The keys of the {c} did not contain the tenant, so two customers with the same number read each other's "
                "entries; the prefix is now `{ident}:v{n}:{{tenant}}`.",
                "{ident}:v{n} prefix",
                "Why did two customers see each other's entries in the {c}?",
                "How could strangers get a look at foreign data through {other}?",
            ),
            Fact(
                "Invalidation by event replaces the fixed lifetime: the {c} now forgets an entry when `changed.{ident}` "
                "arrives, and the lifetime of {m} seconds is only the safety net.",
                "changed.{ident} event",
                "When does the {c} forget an entry now?",
                "What makes {other} throw away what it remembers?",
            ),
            Fact(
                "To prevent a stampede only one request per key recomputes, everybody else gets the old value for up to {n} "
                "seconds; {lib} calls this stale while revalidate.",
                "{lib} stale while revalidate {ident}",
                "How do we prevent a stampede on the {c}?",
                "What happens with {other} if a thousand visitors want the same expired answer?",
            ),
        ),
        (
            "There are only two honest answers to how long something may be cached: not at all, or as long as nobody minds.",
            "The hit rate alone says little, because the expensive keys are not the frequent ones.",
            "Negative results are cached as well, but only for a tenth of the time.",
            "Every entry carries the moment it was computed, so that its age can be shown in the header.",
        ),
    ),
    Topic(
        "Retries and backoff",
        ("When the partner is down, the {c} makes it worse by asking again and again.", "Please add sane retries to the {c}."),
        (
            Fact(
                "The {c} now waits {n} ms, doubles that with every attempt, adds up to a third of jitter and gives up after "
                "{m} attempts.",
                "backoff jitter attempts {ident}",
                "After how many attempts does the {c} give up?",
                "How stubborn is {other} if nobody answers?",
            ),
            Fact(
                "Only idempotent calls are repeated; `{ident}` sends the header `Idempotency-Key` with everything that moves "
                "money, and the server keeps the key for {n} hours.",
                "Idempotency-Key {ident}",
                "How long does the server keep the key that the {c} sends?",
                "What keeps {other} from doing the same thing twice to a customer?",
            ),
            Fact(
                "The circuit breaker of the {c} opens when half of the last {m} calls have failed and lets a single probe "
                "through every ten seconds; {lib} would have needed a shared counter for that.",
                "circuit breaker {ident} {lib}",
                "When does the circuit breaker of the {c} open?",
                "At which point does {other} stop bothering a neighbour that is ill?",
            ),
        ),
        (
            "A retry is a bet that the second try meets a different world than the first.",
            "Without jitter all clients come back at the same instant, which is how an outage becomes a rhythm.",
            "Timeouts are set from the outside in: the caller must not give up later than the one it calls.",
            "A budget of ten percent extra requests is what the other side can be expected to bear.",
        ),
    ),
    Topic(
        "Expired tokens",
        ("Users are thrown out of the {c} in the middle of their work.", "{c}: 401 after an hour although people are active."),
        (
            Fact(
                "The refresh of the {c} raced with itself: two tabs exchanged the same refresh token, the second one was "
                "rejected with {code} and the whole family was revoked.",
                "refresh token {code}",
                "Why were users thrown out of the {c}?",
                "What went wrong for people with two windows open in {other}?",
            ),
            Fact(
                "The clock of the {c} was {n} seconds ahead of the issuer, so `nbf` was in the future; a leeway of {m} seconds "
                "is now allowed.",
                "nbf leeway {ident}",
                "What leeway does the {c} allow for tokens?",
                "How much may the time differ between {other} and whoever issues the passes?",
            ),
            Fact(
                "{who} wants the access token of the {c} to live for {n} minutes at most, since a stolen one cannot be taken "
                "back.",
                "access token lifetime {ident}",
                "How long may an access token of the {c} live?",
                "Who insisted that a pass for {other} is valid only briefly, because theft cannot be undone?",
            ),
        ),
        (
            "The signature is checked first, then the audience, then the times, in this order.",
            "A token is a bearer instrument: whoever holds it is whoever it says.",
            "Cookies carry it with the flags HttpOnly, Secure and SameSite=Lax.",
            "Keys are rotated with an overlap, so that there are always two that are valid.",
        ),
    ),
    Topic(
        "Rate limiting",
        ("One customer alone brings the {c} to its knees.", "Can the {c} get a limit per customer?"),
        (
            Fact(
                "It is a token bucket per customer: {n} requests per minute with a burst of {m}, and the {c} answers 429 with "
                "`Retry-After` when it is empty.",
                "token bucket burst {ident}",
                "What burst does the limit of the {c} allow?",
                "How much may a single client ask of {other} before being turned away?",
            ),
            Fact(
                "Internal callers of the {c} are exempt if they come with a client certificate of the mesh; an address range "
                "was too easy to fake.",
                "mesh certificate exempt {ident}",
                "Who is exempt from the limit of the {c}?",
                "How does {other} know that a caller is one of us and need not be slowed down?",
            ),
            Fact(
                "The counters of the {c} live in {lib}, and if that is gone the limit fails open, which {who} signed off.",
                "{ident} limit fails open {lib}",
                "Where do the counters for the limit of the {c} live?",
                "What happens to the restriction of {other} if its memory is unavailable?",
            ),
        ),
        (
            "A limit protects the neighbours of whoever runs into it, so it has to be per customer to be fair.",
            "A fixed window lets twice the limit through at its edge; a sliding one does not.",
            "The headers say how much is left, and well-behaved clients slow down by themselves.",
            "Rejecting early is cheap only if nothing expensive has happened before the check.",
        ),
    ),
    Topic(
        "Pagination",
        ("Listing everything in the {c} takes half a minute on the last pages.", "The {c} shows rows twice when I page."),
        (
            Fact(
                "OFFSET made the {c} read and drop {n}000 rows for a late page; the cursor is now the pair `(created_at, id)` "
                "in base64.",
                "created_at, id cursor of {ident}",
                "What is the cursor of the {c} made of?",
                "Why did leafing to the end take for ever with {other}?",
            ),
            Fact(
                "A page of the {c} holds {m} rows, larger ones made the JSON encoder the slowest part.",
                "page rows {ident} JSON encoder",
                "How many rows does a page of the {c} hold?",
                "How much does {other} hand out at a time, and what was the slow bit otherwise?",
            ),
            Fact(
                "The total that the {c} used to show is gone: counting exactly cost more than the page itself, and {who} "
                "agreed to an estimate from the planner.",
                "planner estimate total {ident}",
                "Why does the {c} not show an exact total any more?",
                "Who was fine with a rough number of hits in {other}?",
            ),
        ),
        (
            "Keyset pagination needs an order that is total, so the id always comes last.",
            "Rows that are inserted while somebody pages appear on a page that was already read, or not at all.",
            "The cursor is opaque on purpose: what clients cannot take apart we may change.",
            "Going backwards is the same query with the comparison turned around and the result reversed.",
        ),
    ),
    Topic(
        "Import of large files",
        ("A file of two gigabytes kills the {c}.", "The {c} should take large CSV files without falling over."),
        (
            Fact(
                "The {c} read the whole file because `csv.Sniffer` wants a sample and got everything; it now gets the first "
                "{n} kB.",
                "csv.Sniffer sample {ident}",
                "How much of the file does the sniffer of the {c} get?",
                "What made {other} swallow an entire document just to guess its format?",
            ),
            Fact(
                "Bad lines of the {c} go to a file beside the original, with their number and the reason; the import stops "
                "only if more than {m} in a thousand are bad.",
                "bad lines stop import {ident}",
                "When does the import of the {c} stop because of bad lines?",
                "How many broken records does {other} put up with?",
            ),
            Fact(
                "Encoding is guessed with {lib} and falls back to cp1252, since the only supplier without UTF-8 for the {c} is "
                "{who}'s.",
                "cp1252 {lib} {ident}",
                "Which encoding does the {c} fall back to?",
                "What if the letters with accents come out wrong in {other}?",
            ),
        ),
        (
            "Memory must not depend on the size of the input, only on the size of the longest line.",
            "A byte order mark at the beginning becomes part of the first column's name if nobody removes it.",
            "The import is resumable: it writes down the offset of the last line that is safe.",
            "Quotes inside of quotes are doubled, except by one program that escapes them with a backslash.",
        ),
    ),
    Topic(
        "Image size of the container",
        ("The container of the {c} has become larger than a gigabyte.", "Deploys of the {c} take ages because of the image."),
        (
            Fact(
                "Most of it was the compiler: the image of the {c} is now built in two stages and has shrunk from {n}0 MB "
                "to {m} MB.",
                "two stages image {ident}",
                "To what size has the image of the {c} shrunk?",
                "What was the heaviest ballast in the package of {other}?",
            ),
            Fact(
                "We stay with a glibc base for the {c}, because {lib} has no wheels for musl and would be compiled each time.",
                "musl wheels {lib} {ident}",
                "Why do we stay with a glibc base for the {c}?",
                "Why not the tiniest possible system underneath {other}?",
            ),
            Fact(
                "The {c} runs as user {m} with a read-only root file system; only `/var/run/{ident}` can be written.",
                "/var/run/{ident} read-only",
                "Which folder can the {c} write to?",
                "How is {other} kept from changing its own disk?",
            ),
        ),
        (
            "Layers are cached by what they copy, so what changes rarely comes first.",
            "A secret that was copied and then deleted is still in the layer below.",
            "The lock file is copied and installed before the source, which saves minutes on most builds.",
            "Labels carry the commit and the time of the build, so that an image says where it comes from.",
        ),
    ),
    Topic(
        "Flaky tests",
        ("The tests of the {c} fail every third time in CI, never here.", "Can you make the suite of the {c} reliable?"),
        (
            Fact(
                "`test_{ident}_orders` depended on the order of a set; with PYTHONHASHSEED={n} it fails every time, sorted it "
                "never does.",
                "PYTHONHASHSEED test_{ident}_orders",
                "Which seed makes the test of the {c} fail every time?",
                "What was random about the check for {other} that broke now and then?",
            ),
            Fact(
                "The tests of the {c} shared port {m}0, and two jobs on one runner took it from each other; the port is now "
                "given by the system.",
                "port {m}0 {ident}",
                "Why did two jobs on one runner disturb each other in the tests of the {c}?",
                "What did parallel runs for {other} fight over?",
            ),
            Fact(
                "{who} quarantined four tests of the {c} until the end of the sprint; whoever repairs one removes its marker "
                "`flaky_{n}`.",
                "flaky_{n} marker",
                "Who quarantined tests of the {c}?",
                "Who put some checks of {other} aside for a while?",
            ),
        ),
        (
            "A test that fails one time in twenty will fail today, because there are more than twenty of them.",
            "Sleeping is guessing; waiting for the event itself is both faster and right.",
            "The runner has two slow cores, so everything that is a race here is a loss there.",
            "Repeating a failed test hides exactly the bugs that users will find.",
        ),
    ),
    Topic(
        "Certificates",
        ("The {c} stopped at midnight with a TLS error.", "How do we rotate the certificate of the {c} without a restart?"),
        (
            Fact(
                "The chain of the {c} lacked the intermediate `R{n}`; browsers fetch it themselves, {lib} does not.",
                "intermediate R{n} {lib}",
                "Which certificate was missing in the chain of the {c}?",
                "Why did only programs, not people with a browser, distrust {other}?",
            ),
            Fact(
                "The {c} now watches the folder and reloads within {n} seconds after a renewal; established connections keep "
                "the old one until they end.",
                "reload renewal {ident}",
                "How fast does the {c} reload a renewed certificate?",
                "Do open conversations break when {other} gets new papers?",
            ),
            Fact(
                "An alert goes to {who} {m} days before the certificate of the {c} expires; the one that failed went to a "
                "mailbox that nobody reads.",
                "expiry alert {ident} {who}",
                "Who is alerted before the certificate of the {c} expires?",
                "How early is somebody warned that the papers of {other} run out?",
            ),
        ),
        (
            "A certificate is only as good as the procedure that replaces it.",
            "The name must be among the subject alternative names, the common name has not counted for years.",
            "Pinning protects against a threat that few have and breaks on a day that everybody has.",
            "Renewal is tested by renewing: the staging system does it every week.",
        ),
    ),
    Topic(
        "Time zones",
        ("On the day of the clock change the {c} did everything twice.", "Dates in the {c} are off by one for some people."),
        (
            Fact(
                "The {c} stored local times without an offset, so 02:{n} existed twice; it is UTC in the database now and "
                "local only on the screen.",
                "02:{n} offset {ident}",
                "Why did the {c} do everything twice?",
                "What was ambiguous in {other} that night in autumn?",
            ),
            Fact(
                "Birthdays and due dates of the {c} are plain dates with no zone at all; turning them into instants is what "
                "moved them for everybody west of us.",
                "due dates plain dates {ident}",
                "Why were due dates of the {c} moved?",
                "For whom did the calendar in {other} slip, and why?",
            ),
            Fact(
                "The rules come with {lib} version {n}.{m} and not from the system, since the image of the {c} is rebuilt more "
                "often than the hosts.",
                "{lib} {n}.{m} rules",
                "Where does the {c} take the rules of the zones from?",
                "Why does {other} bring its own knowledge of summer time?",
            ),
        ),
        (
            "A moment, a date and a time of day are three different things, and only the first has a zone behind it.",
            "Recurring things are stored as a rule in local time, because that is what people mean by every day at nine.",
            "An offset is not a zone: it does not know what happens in October.",
            "Tests run in three zones, one of which is half an hour off.",
        ),
    ),
    Topic(
        "Queue that grows",
        ("The queue of the {c} has a million entries and grows.", "Messages reach the {c} hours late."),
        (
            Fact(
                "One poisoned message blocked the partition: the {c} tried it {n} times per second for ever; after five "
                "attempts it now goes to `{ident}.dead`.",
                "{ident}.dead",
                "What blocked the queue of the {c}?",
                "What became of the one entry that {other} choked on?",
            ),
            Fact(
                "Prefetch was unlimited, so the first consumer of the {c} held everything; with a prefetch of {m} all of them "
                "have work.",
                "prefetch {ident}",
                "What is the prefetch of the {c}?",
                "Why was one helper of {other} overloaded while the others sat around?",
            ),
            Fact(
                "We do not scale the {c} beyond {n} consumers: order is only kept per account, and there are that many "
                "partitions.",
                "{ident} consumers partitions order",
                "How many consumers may the {c} have?",
                "What is the ceiling for adding more hands to {other}?",
            ),
        ),
        (
            "The length of a queue says how much is late, its oldest entry says how late.",
            "At least once is what one gets, so whoever consumes has to recognise what was already done.",
            "Acknowledging before the work is done turns a crash into a loss.",
            "A queue absorbs peaks; it does not make a slow consumer fast.",
        ),
    ),
    Topic(
        "Reconnecting websockets",
        ("After a deploy all clients of the {c} come back in the same second.", "The socket of the {c} dies silently."),
        (
            Fact(
                "The load balancer cuts what is silent for {n} seconds, the {c} pinged only every {m}; the ping now comes at "
                "half the limit.",
                "ping load balancer {ident}",
                "Why did connections of the {c} die silently?",
                "How come {other} lost contact with anybody who kept quiet?",
            ),
            Fact(
                "A client of the {c} resumes with `last_event={n}`, and the server replays at most {m} events before it asks "
                "for a fresh start.",
                "last_event replay {ident}",
                "How many events does the {c} replay?",
                "How far back can somebody pick up the thread in {other} after losing contact?",
            ),
            Fact(
                "On shutdown the {c} sends close code 1012 with a delay for each client, spread over {n} seconds, which {who} "
                "tested with forty thousand of them.",
                "1012 close {ident}",
                "Over how many seconds are clients of the {c} spread at a shutdown?",
                "How is the rush avoided when {other} goes down for maintenance?",
            ),
        ),
        (
            "A connection that is open on one side and closed on the other is the normal case, not the exception.",
            "Backpressure has to reach the producer; a buffer without a limit is a memory leak with good intentions.",
            "Compression per message costs memory per connection, which is why it is off for small ones.",
            "The proxy needs the upgrade headers, and a timeout that is longer than the ping.",
        ),
    ),
    Topic(
        "Memory that grows",
        ("The {c} needs two gigabytes after a week.", "The {c} is killed by the kernel every few days."),
        (
            Fact(
                "A dictionary of `{ident}` keeps one entry per request id and nobody removes them: {n} MB per day, visible in "
                "the third snapshot.",
                "dictionary request id {ident} snapshot",
                "What grows in the memory of the {c}?",
                "What does {other} never throw away?",
            ),
            Fact(
                "Fragmentation was the rest: with {lib} as the allocator the {c} stays at {m} MB, without it at twice that.",
                "{lib} allocator {ident}",
                "At how many MB does the {c} stay with another allocator?",
                "What helped {other} against holes in its heap?",
            ),
            Fact(
                "Until that is released {who} restarts the {c} at 04:{n} every night, one instance after the other.",
                "restart 04:{n} {ident}",
                "When is the {c} restarted every night?",
                "What is the stopgap for {other} while the real repair waits?",
            ),
        ),
        (
            "Comparing two snapshots shows what was allocated in between and is still there.",
            "Resident memory includes what the allocator has not given back, which is not a leak.",
            "A cache without a limit is a leak that somebody asked for.",
            "The limit of the container is what the kernel enforces, the limit of the runtime is what it aims for.",
        ),
    ),
    Topic(
        "Deadlock",
        ("Twice a day the {c} hangs until somebody restarts it.", "deadlock detected in the {c}, what now?"),
        (
            Fact(
                "Two transactions of the {c} lock accounts in opposite order; sorting the ids before locking ended it, error "
                "{code} has not come back.",
                "{code} locking order",
                "What ended the deadlock of the {c}?",
                "Which two things got into each other's way in {other}?",
            ),
            Fact(
                "The advisory lock {n}{m} is taken by the {c} for the whole month-end run, so nothing else needs row locks "
                "during that time.",
                "advisory lock {n}{m}",
                "Which lock does the {c} take for the run at the end of the month?",
                "How does {other} keep everybody out while the books are closed?",
            ),
            Fact(
                "`lock_timeout` of the {c} is {n} seconds: {who} prefers a failed request to a page that never comes.",
                "lock_timeout {ident}",
                "What is the lock timeout of the {c}?",
                "Who would rather see an error than an endless wait in {other}?",
            ),
        ),
        (
            "The victim is chosen by the server and has to try again, so every transaction must be repeatable.",
            "A lock that is taken late and released early needs no explanation.",
            "The view of the waiting locks shows who waits for whom, but only while it happens.",
            "Reads do not block writes here, but SELECT FOR UPDATE does.",
        ),
    ),
    Topic(
        "Rounding of amounts",
        ("Sums in the {c} are off by a cent.", "The total of the {c} does not match the sum of its lines."),
        (
            Fact(
                "The {c} added floats; amounts are now integers in thousandths, and only the last step rounds half to even.",
                "thousandths half to even {ident}",
                "How are amounts of the {c} rounded now?",
                "Why did pennies go missing in {other}?",
            ),
            Fact(
                "Tax is computed per line and not on the total, as the accountant of {who} demands; the difference of the {c} "
                "was {n} cents in {m} documents.",
                "tax per line {ident}",
                "Is the tax of the {c} computed per line or on the total?",
                "Whose bookkeeper told us in which order to work out the duties in {other}?",
            ),
            Fact(
                "Currencies without decimals broke the {c}: the exponent now comes from table `currency_{n}` instead of a 2 in "
                "the code.",
                "currency_{n} exponent",
                "Where does the {c} take the number of decimals from?",
                "What did {other} assume about yen that was not true?",
            ),
        ),
        (
            "Money is a number with a currency, and two of them can only be added if the currencies are the same.",
            "The remainder of a division has to go somewhere: here it goes to the largest share.",
            "A decimal column keeps what it is given, a double keeps something near it.",
            "Comparing with a tolerance hides the very error that one is looking for.",
        ),
    ),
    Topic(
        "Structured logging",
        ("Nobody finds anything in the logs of the {c}.", "We pay a fortune for the logs of the {c}."),
        (
            Fact(
                "Every line of the {c} is JSON with `trace_id`, and health checks are not logged at all, which alone saves {n} "
                "percent.",
                "trace_id health checks {ident}",
                "What share of the logs do we save by leaving out the health checks of the {c}?",
                "Which chatter did we silence to make {other} cheaper?",
            ),
            Fact(
                "Names and addresses are masked in the {c} before they leave the process; the pattern list is `mask_{n}.yaml` "
                "and {who} owns it.",
                "mask_{n}.yaml",
                "Who owns the list of patterns that the {c} masks?",
                "Who looks after hiding personal details in what {other} writes down?",
            ),
            Fact(
                "Debug lines of the {c} are kept for {m} days, errors for a year, and {lib} samples one of {n} successes.",
                "{lib} samples {ident}",
                "For how many days are debug lines of the {c} kept?",
                "How long can we look back at the fine print of {other}?",
            ),
        ),
        (
            "A log line is written once and read never, except in the one night in which it matters.",
            "Levels are for machines: error means that somebody has to get up.",
            "What is a number belongs into a metric, what is a story belongs into a log.",
            "The same field has the same name everywhere, otherwise it cannot be searched for.",
        ),
    ),
    Topic(
        "Feature flags",
        ("How do we ship the new path of the {c} to a few customers first?", "Can we switch the {c} back without a deploy?"),
        (
            Fact(
                "The flag `{ident}_next` is on for {n} percent of accounts, by a hash of the account and not of the visitor, "
                "so that colleagues see the same.",
                "{ident}_next percent",
                "By what is it decided who sees the new path of the {c}?",
                "Why do people of one company all get the same version of {other}?",
            ),
            Fact(
                "If the flag service is gone, the {c} uses what it last knew for {m} minutes and then the old path.",
                "flag service gone {ident}",
                "What does the {c} do if the flag service is gone?",
                "How does {other} behave once nobody can tell it which variant to take?",
            ),
            Fact(
                "{who} removes the old path of the {c} in release {n}.{m}; a flag without a date of removal is not merged any "
                "more.",
                "old path removal {n}.{m}",
                "In which release is the old path of the {c} removed?",
                "Who tidies up the superseded variant of {other}, and when?",
            ),
        ),
        (
            "Each flag doubles the number of programs that one ships, so there should be few and short-lived ones.",
            "The default in the code is the one that is safe if nothing else is known.",
            "A kill switch is tested by switching it, on a quiet morning.",
            "Evaluations are counted, so one sees when a flag is no longer asked for.",
        ),
    ),
    Topic(
        "Webhook signatures",
        ("A partner says that our signatures are wrong.", "How does the {c} know that a call really comes from them?"),
        (
            Fact(
                "The body was parsed and written again before it was signed, which moved the spaces; the {c} now signs the "
                "bytes as they are sent, with HMAC and secret number {n}.",
                "HMAC bytes {ident}",
                "Why were the signatures of the {c} wrong?",
                "What changed the letter before {other} put its seal on it?",
            ),
            Fact(
                "Calls older than {m} seconds are refused by the {c}, as a replay would otherwise be possible for ever.",
                "replay seconds {ident}",
                "How old may a call to the {c} be?",
                "How is it prevented that somebody plays an old recording to {other}?",
            ),
            Fact(
                "Two secrets of the {c} are valid during a rotation, and the header carries both as `v1=` and `v2=`; {lib} on "
                "the partner's side reads only the first.",
                "v1= v2= {lib} {ident}",
                "How many secrets of the {c} are valid during a rotation?",
                "What trips the other side when {other} changes its keys?",
            ),
        ),
        (
            "The comparison takes the same time whether the first byte differs or the last.",
            "The name of the algorithm is fixed in the code; what the header says about it is ignored.",
            "A delivery counts only with an answer of the two hundreds within ten seconds.",
            "What is delivered twice has the same id twice, and that is how to recognise it.",
        ),
    ),
    Topic(
        "Restoring a backup",
        ("We have never restored the data of the {c}.", "How long would it take to get the {c} back from nothing?"),
        (
            Fact(
                "The rehearsal took {n} minutes for the {c}, of which most was rebuilding indexes; without them it answers "
                "after {m} minutes.",
                "rehearsal indexes {ident}",
                "How long did the rehearsal for the {c} take?",
                "How soon could {other} be back on its feet after a total loss?",
            ),
            Fact(
                "The dumps of the {c} had been empty since March because the password had changed and the pipe hid the exit "
                "status; `pipefail` is set now.",
                "pipefail dumps {ident}",
                "Why were the dumps of the {c} empty?",
                "What went unnoticed for months with the safety copies of {other}?",
            ),
            Fact(
                "The key that opens the copies of the {c} is in the safe of {who}, on paper, and a second one with the bank.",
                "key copies safe {ident}",
                "Where is the key that opens the copies of the {c}?",
                "Where would we find what decrypts the archive of {other} if all computers were gone?",
            ),
        ),
        (
            "A backup that was never restored is a hope.",
            "Point in time recovery needs every log since the base copy, without a gap.",
            "The copies are in another account, and the account that writes them cannot delete them.",
            "Checking means counting rows and comparing the newest ones, not looking whether the file is there.",
        ),
    ),
    Topic(
        "Probes and rollouts",
        ("During a deploy of the {c} users get errors for seconds.", "The {c} is restarted in a loop after every release."),
        (
            Fact(
                "The liveness probe asked the database, so a slow query restarted the {c}; it now asks only the process, every "
                "{n} seconds.",
                "liveness probe {ident}",
                "Why was the {c} restarted in a loop?",
                "What check punished {other} for the slowness of somebody else?",
            ),
            Fact(
                "Requests still arrived after SIGTERM: the {c} now waits {m} seconds before it stops listening, until the "
                "routes are gone everywhere.",
                "SIGTERM wait {ident}",
                "How long does the {c} wait before it stops listening?",
                "Why did visitors hit a closed door whenever {other} was replaced?",
            ),
            Fact(
                "`maxUnavailable` of the {c} is 0 and `maxSurge` is {n}, which needs the spare node that {who} ordered.",
                "maxSurge {ident}",
                "What is maxSurge of the {c}?",
                "Who paid for extra room so that {other} can be swapped without a gap?",
            ),
        ),
        (
            "Readiness decides about traffic, liveness about life; to mix them up costs a night.",
            "A startup probe gives slow starters the time that they need, once.",
            "The grace period includes the time of the hook before the signal.",
            "A rollout that cannot be taken back within a minute is a migration.",
        ),
    ),
    Topic(
        "Slow query",
        ("The overview of the {c} takes eleven seconds.", "Why is this statement of the {c} slow only in production?"),
        (
            Fact(
                "The planner expected 1 row and got {n}000, hence the nested loop; extended statistics on `(region, status)` "
                "bring the {c} from eleven seconds to {m} ms.",
                "extended statistics region, status {ident}",
                "What brings the overview of the {c} down to milliseconds?",
                "What was the optimiser of {other} wrong about?",
            ),
            Fact(
                "The index `ix_{ident}_{n}` was invalid since a build that was aborted, and nobody had looked.",
                "ix_{ident}_{n}",
                "Which index of the {c} was invalid?",
                "What was half finished and of no use to {other}?",
            ),
            Fact(
                "{lib} fetched every child one by one: {m} statements for one page of the {c}, two since they are joined.",
                "{lib} statements per page {ident}",
                "How many statements did one page of the {c} need?",
                "Which layer asked {other} in far too many small steps?",
            ),
        ),
        (
            "The estimate and the actual number of rows beside each other tell most of the story.",
            "An index helps only if it excludes more than it costs to go back to the table.",
            "A function around a column hides the column from the index.",
            "What is fast with a warm cache has to be measured with a cold one as well.",
        ),
    ),
    Topic(
        "Upgrade of a dependency",
        ("{lib} has a new major version, what does that mean for the {c}?", "Please move the {c} to the current {lib}."),
        (
            Fact(
                "{lib} {n} made the client asynchronous; the {c} has {m} places that call it, all but three mechanical.",
                "{lib} {n} asynchronous {ident}",
                "How many places of the {c} call {lib}?",
                "How much work is the new release for {other}, roughly?",
            ),
            Fact(
                "The default of `verify` changed to true in {lib}, which is why the {c} failed with {code} against the old "
                "warehouse.",
                "{lib} verify {code}",
                "Why did the {c} fail after the upgrade of {lib}?",
                "Which silent change broke the talk between {other} and the old storehouse?",
            ),
            Fact(
                "We pin {lib} below {n}.{m} for the {c} until their ticket about lost headers is closed; {who} watches it.",
                "pin {lib} below {n}.{m}",
                "Until when do we pin {lib} for the {c}?",
                "Who keeps an eye on the bug outside of our house that holds back {other}?",
            ),
        ),
        (
            "The changelog says what they changed, the tests say what we used.",
            "One dependency per change, so that a bisection tells which one it was.",
            "A shim that is deprecated still has to be tested until the day it goes.",
            "The lock file changes with it and is reviewed like code.",
        ),
    ),
)

ASIDES = (
    Fact(
        "By the way, {who} moves to the {team} team in {month} and hands the pager over to {who2}.",
        "{who} pager {who2}",
        "Who takes over the pager from {who}?",
        "Who is on call instead of {who} from {month} on?",
    ),
    Fact(
        "Unrelated: the staging host `{host}` keeps its old name until the audit in {month}, please do not rename it.",
        "{host} rename",
        "Until when does the staging host {host} keep its name?",
        "Which machine must still be called as before until the inspectors have been here?",
    ),
    Fact(
        "One more thing for later: the license of {lib} ends in {month}, and {who} has to renew it before that.",
        "{lib} license {who}",
        "When does the license of {lib} end?",
        "What does {who} have to extend in time so that we may go on using it?",
    ),
    Fact(
        "The budget for new disks was approved, {n} of them, and they arrive in the week of {who}'s holiday.",
        "{n} disks {who}",
        "How many new disks were approved?",
        "What hardware comes while {who} is away?",
    ),
    Fact(
        "As agreed with {who}, the code freeze for the {month} release starts on the {n}th, and only fixes go in after that.",
        "code freeze {month}",
        "When does the code freeze for {month} start?",
        "From which day on is nothing new accepted before the {month} launch?",
    ),
    Fact(
        "For the record, the demo for {company} runs on `{host}` and must not be redeployed before {month} {n}.",
        "{company} demo {host}",
        "On which host does the demo for {company} run?",
        "What should we leave alone because {company} looks at it?",
    ),
    Fact(
        "{who} asked that nobody merges into `release/{n}.{m}` without {who2}'s approval from now on.",
        "release/{n}.{m} approval",
        "Whose approval is needed to merge into release {n}.{m}?",
        "Who has to nod before anything goes into that branch of {who}'s?",
    ),
    Fact(
        "The intern, {who}, starts in {month} and will look after the {team} documentation first.",
        "{who} {team} documentation",
        "What will {who} look after first?",
        "With what does the newcomer begin in {month}?",
    ),
    Fact(
        "I noticed that the second factor of the account `ops-{n}` is still on {who}'s old phone.",
        "ops-{n} second factor",
        "On whose phone is the second factor of ops-{n}?",
        "Which shared login depends on an old device of {who}?",
    ),
    Fact(
        "{company} pays by purchase order only, number {n}-{m}, so do not send them to the card form.",
        "purchase order {n}-{m}",
        "How does {company} pay?",
        "Which customer must not be asked for a credit card?",
    ),
    Fact(
        "The retrospective about the outage in {month} is on a Thursday at {n}:30 in the room {room}.",
        "retrospective {room}",
        "In which room is the retrospective about the outage?",
        "Where do we sit together about what broke in {month}?",
    ),
    Fact(
        "{who} has promised {company} an answer about data residency by {month} {n}, and nothing has been written yet.",
        "data residency {company}",
        "By when has {company} been promised an answer about data residency?",
        "What do we still owe {company} in writing about where their records are kept?",
    ),
    Fact(
        "The door code of the server room {room} is changed every {m} weeks, ask {who} for the new one.",
        "door code {room}",
        "Whom do I ask for the door code of {room}?",
        "How do I get in to the machines, and how often does that change?",
    ),
    Fact(
        "Since {month} the {team} team deploys on Mondays and Thursdays only, never after {n}:00.",
        "{team} deploys {n}:00",
        "On which days does the {team} team deploy?",
        "When is the {team} crew allowed to put something live?",
    ),
    Fact(
        "The old wiki goes offline in {month}; {who} has moved the runbooks of the {team} team to `{host}` already.",
        "runbooks {host} wiki",
        "Where have the runbooks of the {team} team been moved?",
        "What happens to the former knowledge base, and who saved the instructions?",
    ),
    Fact(
        "For {company} we promised {n} nines only during their business hours, which end at {m} past six in their zone.",
        "{company} nines business hours",
        "What availability did we promise {company}?",
        "When may the service of {company} be down without breaking a promise?",
    ),
)


class Incident(NamedTuple):
    """What stands in a pasted log: lines in the middle of many others, how it is shown, and questions about the paste."""

    shown: tuple[str, ...]
    lines: tuple[str, ...]
    exact: str
    plain: str
    other: str


INCIDENTS = (
    Incident(
        ("here is what it prints before it dies", "this is from last night"),
        ("E {ident} worker {n} lost: no heartbeat for {m} s", "E {ident} {code} partition revoked, giving up"),
        "{code} {ident} partition revoked",
        "In which log did the {c} lose a worker without a heartbeat?",
        "Where did I show that a helper of {other} went silent?",
    ),
    Incident(
        ("it does not start any more", "output of the failed start"),
        ("F {ident} cannot bind 0.0.0.0:{m}0: address already in use", "F {ident} exiting with status {n}"),
        "{ident} cannot bind {m}0",
        "Which log shows that the address was already in use for the {c}?",
        "When could {other} not come up as somebody else sat on its port?",
    ),
    Incident(
        ("the disk again", "from the host, look near the middle"),
        ("E {ident} write failed: no space left on device (/data/{ident}, {n} of {n} GB)", "W {ident} dropping spool {m}"),
        "/data/{ident} no space left",
        "Where did I paste that the {c} had no space left on the device?",
        "When was the drive of {other} full?",
    ),
    Incident(
        ("the whole trace from staging", "what I get when I call it"),
        (
            "Traceback (most recent call last):",
            '  File "{path}", line {n}, in handle',
            "    return self._resolve(payload, strict=True)",
            '  File "{path}", line {m}, in _resolve',
            "    raise ContractViolation(f'{ident}: missing field {{name}}')",
            "ContractViolation: {ident}: missing field 'valid_until_{n}'",
        ),
        "ContractViolation valid_until_{n}",
        "In which trace did the {c} miss a field?",
        "Where did {other} complain that a required entry was absent?",
    ),
    Incident(
        ("it gets slower and slower", "timings from this morning"),
        ("W {ident} checkout waited {n}{m} ms for lock ledger_{n}", "W {ident} 99th percentile {m}{n} ms over objective"),
        "ledger_{n} checkout waited",
        "Which log shows that the {c} waited for a lock at the checkout?",
        "Where did I show {other} being held up when somebody wanted to pay?",
    ),
    Incident(
        ("nothing gets out since noon", "from the egress node"),
        ("E {ident} getaddrinfo ENOTFOUND relay-{n}.internal", "E {ident} resolver 10.{m}.0.2 timed out twice"),
        "relay-{n}.internal ENOTFOUND",
        "In which log could the {c} not resolve the relay?",
        "When did name lookup fail for {other}?",
    ),
    Incident(
        ("the client says forbidden", "auth log of the minute in question"),
        ("W {ident} signature mismatch for key kid-{n} (expected alg ES256)", "W {ident} denied subject svc-{m}: {code}"),
        "kid-{n} signature mismatch",
        "Where is the log in which the {c} denied a subject because of its signature?",
        "When did {other} turn somebody away over a wrong seal?",
    ),
    Incident(
        ("killed again", "dmesg and the last lines"),
        ("kernel: Out of memory: Killed process {n}{m} ({ident}) total-vm:{m}{n}00kB", "systemd: {ident}.service: oom-kill"),
        "oom-kill {ident}.service",
        "Which log shows that the {c} was killed for lack of memory?",
        "Where did the operating system put an end to {other}?",
    ),
    Incident(
        ("the build breaks since the merge", "full output of the pipeline"),
        ("error[{code}]: mismatched types in `{ident}::merge_{n}`", "  expected `Option<Span>`, found `Span`", "build failed"),
        "{ident}::merge_{n}",
        "Which build output had mismatched types in the {c}?",
        "When did {other} not compile after something was joined in?",
    ),
    Incident(
        ("payments hang", "our side of it"),
        ("E {ident} upstream answered 504 after {m} s (attempt {n})", "E {ident} saga {code} rolled back, {n} entries undone"),
        "saga {code} {ident}",
        "In which log was a saga of the {c} rolled back?",
        "Where did {other} take its steps back since the far end was too slow?",
    ),
    Incident(
        ("numbers do not add up", "the reconciliation"),
        ("W {ident} checksum of batch {n}-{m} differs: stored {code}, computed {code}X", "W {ident} batch set aside"),
        "batch {n}-{m} checksum",
        "Which log shows a batch of the {c} that was set aside because its checksum differs?",
        "When did {other} put something away since it had been altered?",
    ),
    Incident(
        ("it says deprecated and then stops", "upgrade log"),
        (
            "W {ident} option legacy_{n} is ignored since version {m}",
            "F {ident} unknown key 'legacy_{n}.grace' in configuration",
        ),
        "legacy_{n}.grace",
        "Where did the {c} refuse an unknown key in its configuration?",
        "When did an outdated setting keep {other} from running?",
    ),
)

CHATTER = (
    "I {ident} accepted {n} items in {ms} ms trace={hex}",
    "I {ident} request GET /v2/{word}/{n} 200 {ms}ms trace={hex}",
    "D {ident} cache lookup {word}:{hex} miss",
    "I {ident} flushed segment {n} ({ms} kB)",
    "D {ident} lease renewed by node-{n} until {ms}",
    "I {ident} scheduler picked {word} for slot {n}",
    "W {ident} slow call to {word} took {ms} ms",
    "I {ident} health ok uptime={n}{ms} goroutines={ms}",
    "D {ident} parsed header x-{word}: {hex}",
    "I {ident} connection from 10.0.{n}.{ms} closed after {ms} requests",
    "I {ident} metrics pushed ({ms} series)",
    "D {ident} retrying {word} in {ms} ms (attempt {n})",
)

LIBRARIES = words(
    "plover norrsken hexbatch tidegate quillmap oakwire fernpool brisk-queue lumenhttp grapplesql pebblecache driftlog "
    "saltbox-auth corvid mangrove-orm kestrel-io tinfoil-tls ravel windrose papertiger"
)
PEOPLE = words("Marta Jonas Priya Tomasz Leila Anders Chiara Kofi Yuki Bram Ines Dmitri Salma Henrik Noor Mateo Freya Oskar")
COMPANIES = words("Halvorsen Brightwater Okonjo Castellane Nordmark Tavares Ellery Wexmoor")
TEAMS = words("platform checkout logistics insight identity content")
MONTHS = words("January February March April May June July August September October November December")
HOSTS = words("heron plover osprey bittern dunlin curlew sanderling godwit avocet lapwing")
ROOMS = words("Aurora Basalt Cedar Dune Ember Fjord Glacier Harbour")
WORDS = words(
    "orders parcels users quotes tariffs carts labels slots tickets drafts regions vouchers returns invoices depots lanes "
    "batches folders avatars coupons"
)

HEADINGS = {
    "cause": ("What happens", "The cause", "Root cause", "Why it fails", "What I found"),
    "change": ("What I changed", "The change", "The fix", "Proposal", "How to do it"),
    "choice": ("Alternatives", "What we decided", "Decisions", "Trade-offs", "Why not otherwise"),
    "code": ("In code", "The patch", "Sketch", "Implementation"),
    "notes": ("Notes", "Background", "Good to know", "Caveats", "In general"),
    "next": ("Next steps", "Rollout", "What is left", "To do"),
}
OPENINGS = (
    "I went through `{path}` and the configuration around it.",
    "Short version first, details below. This is about the {c}.",
    "Thanks for the details. I reproduced it locally with `{ident}` in isolation.",
    "Looking at `{path}`, there are three separate things here.",
    "Here is the complete picture for the {c} as I see it.",
    "I read the history of `{path}` back to the spring.",
)
LINKS = (
    "The {c2} has a similar shape, but there it is not a problem because it is called rarely.",
    "Do not copy this to the {c2} without looking: it has other requirements.",
    "`{ident2}` goes through the same helper, so I ran its tests as well.",
    "If this works out, the {c2} would be the next candidate.",
    "Remember that the {c2} reads the same configuration file.",
)
STEPS = (
    "Merge behind the flag and watch the error rate for a day.",
    "Run the load test with the numbers of last Friday.",
    "Write the runbook entry and link it from the alert.",
    "Ask {who} for a review of the part in `{path}`.",
    "Add a dashboard panel for it, with the same scale as the old one.",
    "Delete the workaround in the deployment script.",
    "Tell support what customers will see in the meantime.",
    "Open a ticket for the cleanup, so that it is not forgotten.",
)
FOLLOW_UPS = (
    "thanks, that works",
    "ok, merged as #{n}{m}. next one",
    "Good. Can you also update the changelog of the {c}?",
    "Hm, let me try that on {host} first.",
    "perfect, exactly what I needed for the {c}",
    "The tests of `{ident}` pass now, I will deploy it after lunch.",
    "Fine with me and with {who}, go on.",
    "Let us leave it at that until {month}.",
    "{who} asks whether the {c2} needs this too.",
    "One question: does `{ident2}` have to be built again?",
    "I have tagged it, {host} gets it tonight.",
    "Wait, the {team} team is about to release. Tomorrow then.",
)
REPLIES = (
    "Done. The changelog has an entry under {n}.{m}.",
    "You are welcome. Tell me how the {c} behaves under real load.",
    "Sure. I kept the diff small, so it should be easy for {who} to review.",
    "All right; I will wait for the result from {host}.",
    "Good. If anything looks odd, paste the log of `{ident}` here.",
    "No, the {c2} is not touched by it.",
    "Yes, but a normal build is enough, nothing has to be cleaned.",
    "Then I would note it for {month} and go on with the rest.",
    "That is what I expected. The next step can wait for the {team} team.",
)
AFTER_LOG = (
    "Thanks for the paste.",
    "I see it, about line {n}.",
    "The interesting part is in the middle; what comes before is routine.",
    "Nothing in the lines around it is unusual, so the trigger is outside of this process.",
    "I would first raise the log level around it and look at what the {c2} did at that moment.",
    "Please check what was deployed to `{host}` in the hour before.",
    "It is one event and not a pattern, so an alert is enough for now.",
    "The rest of the output is harmless chatter that we can turn off.",
    "Compare it with a paste of a good day, and we can narrow it down.",
    "{who} had something similar in {month}; ask how that ended.",
    "Something upstream has changed its behaviour, this here is only the symptom.",
    "Before changing `{path}` I would like to see it a second time.",
)
