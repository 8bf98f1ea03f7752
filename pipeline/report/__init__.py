"""What people look at after a run, a sweep or a study: metrics, tables, pictures, pages. Needs no tracker."""
