// Prints the types outside of an assembly that it uses, and whether an assembly such as netstandard.dll has them.
//
//   Surface ASSEMBLY [NETSTANDARD]

using System;
using System.Collections.Generic;
using System.Reflection;

static class Surface {
    static void Main(string[] args) {
        var module = Assembly.LoadFrom(args[0]).ManifestModule;
        var standard = args.Length > 1 ? Assembly.LoadFrom(args[1]) : null;
        if (standard != null) Console.Error.WriteLine(standard.GetName());
        var names = new SortedSet<string>(StringComparer.Ordinal);
        for (var token = 0x01000001; ; token++) { // TypeRef
            try { names.Add(module.ResolveType(token).FullName); } catch (ArgumentException) { break; }
        }
        foreach (var name in names) {
            Console.WriteLine(name);
            if (standard != null && standard.GetType(name) == null) Console.Error.WriteLine("not there: " + name);
        }
    }
}
