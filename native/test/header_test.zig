//! The C headers against the code: every function on both sides with the same parameters, every
//! struct with the same fields, every status with the same number. The sources are compared as text,
//! so nothing has to be public for it.

const std = @import("std");
const zrecord = @import("zrecord");

const mem = std.mem;
const print = std.debug.print;

const Library = struct {
    header: []const u8,
    code: []const u8,
    prefix: []const u8,
    /// Name in the header, name in the code.
    structs: []const [2][]const u8,
};

const libraries = [_]Library{
    .{
        .header = @embedFile("zrecord.h"),
        .code = @embedFile("zrecord_c_api"),
        .prefix = "zr_",
        .structs = &.{
            .{ "zr_error", "CError" }, .{ "zr_options", "COptions" },      .{ "zr_info", "CInfo" },
            .{ "zr_stats", "CStats" }, .{ "zr_verify_report", "CReport" },
        },
    },
    .{
        .header = @embedFile("zsampler.h"),
        .code = @embedFile("zsampler_c_api"),
        .prefix = "zs_",
        .structs = &.{.{ "zs_config", "Config" }},
    },
};

/// What passes through a parameter or field.
const Class = enum {
    pointer,
    u8,
    u32,
    i32,
    u64,
    i64,
    void,
    bytes16,

    fn ofC(text: []const u8) !Class {
        if (mem.indexOfScalar(u8, text, '*') != null) return .pointer;
        if (mem.endsWith(u8, text, "[16]")) return .bytes16;
        const names = .{
            .{ "uint8_t", Class.u8 },  .{ "uint32_t", Class.u32 }, .{ "int32_t", Class.i32 },         .{ "uint64_t", Class.u64 },
            .{ "int64_t", Class.i64 }, .{ "void", Class.void },    .{ "zr_progress", Class.pointer }, .{ "zr_finding", Class.pointer },
        };
        inline for (names) |name| {
            const rest = mem.trimStart(u8, text, " ");
            if (mem.eql(u8, rest, name[0]) or mem.startsWith(u8, rest, name[0] ++ " ")) return name[1];
        }
        print("C type: {s}\n", .{text});
        return error.UnknownType;
    }

    fn ofZig(text: []const u8) !Class {
        const name = mem.trim(u8, text, " \n");
        if (name[0] == '?' or name[0] == '*' or mem.startsWith(u8, name, "[*")) return .pointer;
        if (mem.eql(u8, name, "[16]u8")) return .bytes16;
        if (mem.eql(u8, name, "c_int")) return .i32;
        if (mem.eql(u8, name, "CProgress") or mem.eql(u8, name, "CFinding")) return .pointer;
        return std.meta.stringToEnum(Class, name) orelse {
            print("Zig type: {s}\n", .{name});
            return error.UnknownType;
        };
    }
};

const Function = struct { name: []const u8, result: Class, parameters: []const Class };

/// The region that bindings compile, without comments.
fn declarations(arena: mem.Allocator, header: []const u8) ![]const u8 {
    const start = mem.indexOf(u8, header, "/* CFFI-BEGIN */").?;
    const end = mem.indexOf(u8, header, "/* CFFI-END */").?;
    var text: std.ArrayList(u8) = .empty;
    var rest = header[start..end];
    while (mem.indexOf(u8, rest, "/*")) |comment| {
        try text.appendSlice(arena, rest[0..comment]);
        rest = rest[mem.indexOfPos(u8, rest, comment, "*/").? + 2 ..];
    }
    try text.appendSlice(arena, rest);
    for (text.items) |*letter| if (letter.* == '\n') {
        letter.* = ' ';
    };
    return text.items;
}

fn functionsOfHeader(arena: mem.Allocator, text: []const u8) ![]Function {
    var found: std.ArrayList(Function) = .empty;
    var statements = mem.splitScalar(u8, text, ';');
    while (statements.next()) |raw| {
        const statement = mem.trim(u8, raw, " ");
        const open = mem.indexOfScalar(u8, statement, '(') orelse continue;
        if (mem.startsWith(u8, statement, "typedef") or mem.indexOfScalar(u8, statement, '{') != null) continue;
        const space = mem.lastIndexOfAny(u8, statement[0..open], " *").?;
        var parameters: std.ArrayList(Class) = .empty;
        const inside = statement[open + 1 .. mem.lastIndexOfScalar(u8, statement, ')').?];
        if (!mem.eql(u8, inside, "void")) {
            var parts = mem.splitScalar(u8, inside, ',');
            while (parts.next()) |part| try parameters.append(arena, try .ofC(mem.trim(u8, part, " ")));
        }
        try found.append(arena, .{
            .name = statement[space + 1 .. open],
            .result = try .ofC(statement[0 .. space + 1]),
            .parameters = parameters.items,
        });
    }
    return found.items;
}

fn functionsOfCode(arena: mem.Allocator, code: []const u8) ![]Function {
    var found: std.ArrayList(Function) = .empty;
    var position: usize = 0;
    const start = "export fn ";
    while (mem.indexOfPos(u8, code, position, start)) |at| {
        const open = mem.indexOfScalarPos(u8, code, at, '(').?;
        const shut = mem.indexOfScalarPos(u8, code, open, ')').?;
        const body = mem.indexOfScalarPos(u8, code, shut, '{').?;
        position = body;
        var parameters: std.ArrayList(Class) = .empty;
        var parts = mem.splitScalar(u8, code[open + 1 .. shut], ',');
        while (parts.next()) |part| {
            const colon = mem.indexOfScalar(u8, part, ':') orelse continue;
            // Sentinels have a colon of their own: the first one ends the name.
            try parameters.append(arena, try .ofZig(part[colon + 1 ..]));
        }
        try found.append(arena, .{
            .name = code[at + start.len .. open],
            .result = try .ofZig(code[shut + 1 .. body]),
            .parameters = parameters.items,
        });
    }
    return found.items;
}

fn find(functions: []const Function, name: []const u8) ?Function {
    for (functions) |function| if (mem.eql(u8, function.name, name)) return function;
    return null;
}

test "every declared function is exported with the same parameters, and the other way round" {
    var arena_state: std.heap.ArenaAllocator = .init(std.testing.allocator);
    defer arena_state.deinit();
    const arena = arena_state.allocator();
    for (libraries) |library| {
        const declared = try functionsOfHeader(arena, try declarations(arena, library.header));
        const exported = try functionsOfCode(arena, library.code);
        try std.testing.expect(declared.len > 4);
        for (declared) |function| {
            errdefer print("{s}\n", .{function.name});
            try std.testing.expect(mem.startsWith(u8, function.name, library.prefix));
            const code = find(exported, function.name) orelse return error.NotExported;
            try std.testing.expectEqualSlices(Class, function.parameters, code.parameters);
            try std.testing.expectEqual(function.result, code.result);
        }
        for (exported) |function| {
            errdefer print("{s}\n", .{function.name});
            if (find(declared, function.name) == null) return error.NotDeclared;
        }
        print("{s}: {d} functions\n", .{ library.prefix, declared.len });
    }
}

const Field = struct { name: []const u8, class: Class };

fn fieldsOfHeader(arena: mem.Allocator, text: []const u8, name: []const u8) ![]Field {
    const start = mem.indexOf(u8, text, try std.fmt.allocPrint(arena, "typedef struct {s} {{", .{name})).?;
    const open = mem.indexOfScalarPos(u8, text, start, '{').?;
    const shut = mem.indexOfScalarPos(u8, text, open, '}').?;
    var fields: std.ArrayList(Field) = .empty;
    var parts = mem.splitScalar(u8, text[open + 1 .. shut], ';');
    while (parts.next()) |raw| {
        const part = mem.trim(u8, raw, " ");
        if (part.len == 0) continue;
        const space = mem.lastIndexOfAny(u8, part, " *").?;
        const end = mem.indexOfScalar(u8, part, '[') orelse part.len;
        try fields.append(arena, .{ .name = part[space + 1 .. end], .class = try .ofC(part) });
    }
    return fields.items;
}

fn fieldsOfCode(arena: mem.Allocator, code: []const u8, name: []const u8) ![]Field {
    const start = mem.indexOf(u8, code, try std.fmt.allocPrint(arena, "const {s} = extern struct {{", .{name})).?;
    const open = mem.indexOfScalarPos(u8, code, start, '{').?;
    const shut = mem.indexOfScalarPos(u8, code, open, '}').?;
    var fields: std.ArrayList(Field) = .empty;
    var parts = mem.splitScalar(u8, code[open + 1 .. shut], ',');
    while (parts.next()) |raw| {
        const part = mem.trim(u8, raw, " \n");
        const colon = mem.indexOfScalar(u8, part, ':') orelse continue;
        try fields.append(arena, .{ .name = part[0..colon], .class = try .ofZig(part[colon + 1 ..]) });
    }
    return fields.items;
}

test "structs have the same fields in the same order" {
    var arena_state: std.heap.ArenaAllocator = .init(std.testing.allocator);
    defer arena_state.deinit();
    const arena = arena_state.allocator();
    for (libraries) |library| {
        const text = try declarations(arena, library.header);
        for (library.structs) |pair| {
            errdefer print("{s}\n", .{pair[0]});
            const declared = try fieldsOfHeader(arena, text, pair[0]);
            const coded = try fieldsOfCode(arena, library.code, pair[1]);
            try std.testing.expectEqual(declared.len, coded.len);
            for (declared, coded) |left, right| {
                errdefer print("{s}\n", .{left.name});
                try std.testing.expectEqualStrings(left.name, right.name);
                try std.testing.expectEqual(left.class, right.class);
            }
        }
        // None is forgotten.
        try std.testing.expect(mem.count(u8, text, "typedef struct") >= library.structs.len);
    }
}

/// The value of a constant of the header; null if there is none of that name.
fn constant(text: []const u8, name: []const u8) ?u64 {
    var position: usize = 0;
    while (mem.indexOfPos(u8, text, position, name)) |at| {
        position = at + name.len;
        if (text[at - 1] != ' ' or !mem.startsWith(u8, text[position..], " = ")) continue;
        const end = mem.indexOfNonePos(u8, text, position + 3, "0123456789").?;
        return std.fmt.parseInt(u64, text[position + 3 .. end], 10) catch null;
    }
    return null;
}

fn expectConstants(text: []const u8, comptime Values: type, comptime prefix: []const u8) !void {
    @setEvalBranchQuota(10_000);
    inline for (std.meta.fields(Values)) |field| {
        comptime var buffer: [field.name.len]u8 = undefined;
        const name = prefix ++ comptime std.ascii.upperString(&buffer, field.name);
        errdefer print("{s}\n", .{name});
        try std.testing.expectEqual(@as(?u64, field.value), constant(text, name));
    }
}

test "constants have the numbers of the code" {
    var arena_state: std.heap.ArenaAllocator = .init(std.testing.allocator);
    defer arena_state.deinit();
    const text = try declarations(arena_state.allocator(), libraries[0].header);
    try expectConstants(text, zrecord.status.Status, "ZR_");
    try expectConstants(text, zrecord.format.Kind, "ZR_");
    try expectConstants(text, zrecord.format.Codec, "ZR_");
    // No status is declared that the code does not know.
    const open = mem.indexOf(u8, text, "enum zr_status {").?;
    const shut = mem.indexOfScalarPos(u8, text, open, '}').?;
    try std.testing.expectEqual(std.meta.fields(zrecord.status.Status).len, mem.count(u8, text[open..shut], " = "));
}

test "the documented tables of the format say what the code lays out" {
    // The tables stand above the structs: offset, size and name of each field, in order.
    const code = @embedFile("zrecord_format");
    const layouts = .{
        .{ "pub const TypedHeader", zrecord.format.TypedHeader },     .{ "pub const Slot ", zrecord.format.Slot },
        .{ "pub const DenseEntry", zrecord.format.DenseEntry },       .{ "pub const RaggedEntry", zrecord.format.RaggedEntry },
        .{ "pub const JournalHeader", zrecord.format.JournalHeader },
    };
    inline for (layouts) |layout| {
        errdefer print("{s}\n", .{layout[0]});
        const at = mem.indexOf(u8, code, layout[0]).?;
        const table = mem.lastIndexOf(u8, code[0..at], "/// |---|---|---|\n").?;
        var rows = mem.splitScalar(u8, code[table..at], '\n');
        _ = rows.next();
        inline for (std.meta.fields(layout[1])) |field| {
            errdefer print("  {s}\n", .{field.name});
            var cells = mem.splitSequence(u8, rows.next().?["/// | ".len..], " | ");
            try std.testing.expectEqual(@offsetOf(layout[1], field.name), try std.fmt.parseInt(usize, cells.next().?, 10));
            try std.testing.expectEqual(@sizeOf(field.type), try std.fmt.parseInt(usize, cells.next().?, 10));
            const described = cells.next().?;
            // A sum is described by what it covers.
            const name = if (mem.startsWith(u8, field.name, "reserved")) "reserved" else field.name;
            if (!mem.eql(u8, name, "sum")) try std.testing.expect(mem.startsWith(u8, described, name));
        }
    }
}
