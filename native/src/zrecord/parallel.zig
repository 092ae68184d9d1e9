//! The worker pool of the process: one for all stores, started when first needed, parked when idle.
//!
//! A call splits its work into blocks. The caller takes blocks itself from the first moment on and
//! workers join as they come; so a worker that comes late costs nothing, and the caller never waits
//! for one that has not started. Protocol:
//!   1. `run` links a job into the list and wakes as many parked workers as the spinning ones are
//!      too few.
//!   2. Caller and workers claim block numbers from the job's counter until none is left.
//!   3. The caller unlinks the job, so nobody can join any more, and waits until those who did have
//!      left. A job lives on its caller's stack.
//!   4. A worker that has left a job spins for a moment before it parks: waking a parked thread costs
//!      tens of microseconds, and the next batch often follows at once.
//! After fork the child has none of the threads: it starts a pool of its own.

const std = @import("std");
const builtin = @import("builtin");
const files = @import("files.zig");
const locks = @import("locks.zig");

pub const thread_count_max = 1024;

/// Threads that one call may use, the caller included.
var thread_count: std.atomic.Value(u32) = .init(1);

pub fn setThreadCount(count: u32) void {
    thread_count.store(std.math.clamp(count, 1, thread_count_max), .monotonic);
}

pub fn threadCount() u32 {
    return thread_count.load(.monotonic);
}

/// Work from which on a second thread pays, though it has to be woken first.
const wake_ns_min = 200_000;
/// The same where workers are awake: while one call follows the other.
const join_ns_min = 30_000;
/// Calls that are no further apart follow each other: a worker spins about as long.
const row_ns_max = 50_000;

/// How many threads `run` should get, the caller included, for what one would do in `work_ns`. Those of
/// other calls count as taken.
pub fn threadsFor(medium: anytype, work_ns: u64) u32 {
    const most = threadCount();
    if (most == 1 or work_ns < join_ns_min) return 1;
    if (work_ns < wake_ns_min and now() -% last_end.load(.monotonic) > row_ns_max) return 1;
    own(medium.processId());
    return @max(1, most -| pool.job_count.load(.monotonic));
}

/// When a call of `run` returned last.
var last_end: std.atomic.Value(u64) = .init(0);

/// Nanoseconds on a clock that only goes forward.
fn now() u64 {
    if (builtin.os.tag == .windows) {
        var count: i64 = 0;
        _ = QueryPerformanceCounter(&count);
        return @as(u64, @intCast(count)) *% 100; // ten million a second on every system that we load on
    }
    var time: std.c.timespec = undefined;
    _ = std.c.clock_gettime(.MONOTONIC, &time);
    return @as(u64, @intCast(time.sec)) *% std.time.ns_per_s +% @as(u64, @intCast(time.nsec));
}

extern "kernel32" fn QueryPerformanceCounter(count: *i64) callconv(.winapi) c_int;

const Job = struct {
    work: *const fn (*anyopaque, usize) void,
    context: *anyopaque,
    block_count: usize,
    next: std.atomic.Value(usize) = .init(0),
    /// Workers inside this job; changed under the pool's mutex.
    joined: std.atomic.Value(u32) = .init(0),
    join_max: u32,
    link: std.DoublyLinkedList.Node = .{},

    fn drain(job: *Job) void {
        while (true) {
            const block = job.next.fetchAdd(1, .monotonic);
            if (block >= job.block_count) return;
            job.work(job.context, block);
        }
    }
};

const Pool = struct {
    mutex: locks.Mutex = .init,
    work_arrived: locks.Condition = .init,
    worker_left: locks.Condition = .init,
    jobs: std.DoublyLinkedList = .{},
    job_count: std.atomic.Value(u32) = .init(0),
    worker_count: u32 = 0,
    spinning_count: u32 = 0,
    parked_count: u32 = 0,
    /// Jobs so far: what a spinning worker watches.
    arrivals: std.atomic.Value(u32) = .init(0),
};

var pool: Pool = .{};

/// The process whose threads the pool has.
var owner: u64 = 0;
const owner_changing = std.math.maxInt(u64);

const worker_stack_size = 512 << 10;

/// Looks at a word that another thread will change, with a pause after each: some tens of microseconds.
const spin_count = 1000;

/// Calls work(context, block) for each block once, on up to `threads` threads (of `threadsFor`), the
/// caller among them. Returns when all are done.
pub fn run(threads: u32, block_count: usize, context: anytype, comptime work: fn (@TypeOf(context), usize) void) void {
    const Context = @TypeOf(context);
    const wanted: u32 = @intCast(@min(threads, block_count));
    defer last_end.store(now(), .monotonic);
    if (wanted <= 1) {
        for (0..block_count) |block| work(context, block);
        return;
    }
    const erased = struct {
        fn call(opaque_context: *anyopaque, block: usize) void {
            work(@as(Context, @ptrCast(@alignCast(opaque_context))), block);
        }
    };
    var job: Job = .{
        .work = erased.call,
        .context = @ptrCast(context),
        .block_count = block_count,
        .join_max = wanted - 1,
    };
    pool.mutex.lock();
    pool.jobs.append(&job.link);
    _ = pool.job_count.fetchAdd(1, .monotonic);
    _ = pool.arrivals.fetchAdd(1, .monotonic);
    while (pool.worker_count < wanted - 1) {
        const thread = std.Thread.spawn(.{ .stack_size = worker_stack_size }, worker, .{}) catch break;
        thread.detach();
        pool.worker_count += 1;
    }
    for (0..@min(pool.parked_count, wanted - 1 -| pool.spinning_count)) |_| pool.work_arrived.signal();
    pool.mutex.unlock();

    job.drain();

    pool.mutex.lock();
    pool.jobs.remove(&job.link);
    _ = pool.job_count.fetchSub(1, .monotonic);
    if (job.joined.load(.monotonic) > 0) {
        pool.mutex.unlock();
        spinWhile(&job.joined, null);
        pool.mutex.lock();
    }
    while (job.joined.load(.monotonic) > 0) pool.worker_left.wait(&pool.mutex);
    pool.mutex.unlock();
}

/// The threads of a parent do not exist in its child, and its mutex may be held by one of them: the
/// first call in a process starts from an empty pool, calls beside it wait until that is done.
fn own(process: u64) void {
    var seen = @atomicLoad(u64, &owner, .acquire);
    while (seen != process) {
        if (seen == owner_changing) {
            std.atomic.spinLoopHint();
            seen = @atomicLoad(u64, &owner, .acquire);
        } else if (@cmpxchgWeak(u64, &owner, seen, owner_changing, .acquire, .acquire)) |other| {
            seen = other;
        } else {
            pool = .{};
            @atomicStore(u64, &owner, process, .release);
            return;
        }
    }
}

fn worker() void {
    pool.mutex.lock();
    while (true) {
        const job = joinable() orelse joinable: {
            const arrivals = pool.arrivals.load(.monotonic);
            pool.spinning_count += 1;
            pool.mutex.unlock();
            spinWhile(&pool.arrivals, arrivals);
            pool.mutex.lock();
            pool.spinning_count -= 1;
            break :joinable joinable();
        } orelse {
            pool.parked_count += 1;
            pool.work_arrived.wait(&pool.mutex);
            pool.parked_count -= 1;
            continue;
        };
        _ = job.joined.fetchAdd(1, .monotonic);
        pool.mutex.unlock();
        job.drain();
        pool.mutex.lock();
        // Under the mutex: the caller cannot be gone before the broadcast.
        if (job.joined.fetchSub(1, .release) == 1) pool.worker_left.broadcast();
    }
}

/// Returns when the word is no longer `value` (null: when it is zero), or after a moment.
fn spinWhile(word: *const std.atomic.Value(u32), value: ?u32) void {
    for (0..spin_count) |_| {
        const found = word.load(.acquire);
        if (if (value) |old| found != old else found == 0) return;
        std.atomic.spinLoopHint();
    }
}

fn joinable() ?*Job {
    var node = pool.jobs.first;
    while (node) |link| : (node = link.next) {
        const job: *Job = @fieldParentPtr("link", link);
        if (job.joined.load(.monotonic) < job.join_max and job.next.load(.monotonic) < job.block_count) return job;
    }
    return null;
}

test "every block once, on any number of threads" {
    const Context = struct {
        seen: [1000]std.atomic.Value(u32) = @splat(.init(0)),
        fn work(self: *@This(), block: usize) void {
            _ = self.seen[block].fetchAdd(1, .monotonic);
        }
    };
    var medium: files.Files = undefined;
    own(medium.processId());
    for ([_]u32{ 1, 2, 5 }) |threads| {
        for ([_]usize{ 0, 1, 2, 1000 }) |blocks| {
            for (0..50) |_| {
                var context: Context = .{};
                run(threads, blocks, &context, Context.work);
                for (context.seen, 0..) |seen, block| {
                    try std.testing.expectEqual(@intFromBool(block < blocks), seen.raw);
                }
            }
        }
    }
}
