module example.com/verified-plugin

go 1.22
